"""What a plugin prints goes to standard error, where nothing of it acts on the terminal."""

from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from pathlib import Path

import pytest

from harness.cli import main
from harness.execution.isolation import plugin_output
from harness.execution.isolation.plugin_output import PluginOutput

pytestmark = pytest.mark.compiles

PLUGIN = """
import os, subprocess, sys, warnings
from one_thread_per_row import plan as right, supports
from harness import Variant

def plan(problem):
    print("print \\x1b]0;owned\\x07")
    sys.stderr.write("error \\u202e\\n")
    os.write(1, b"one \\x9b2J\\n")
    os.write(2, b"two \\x1b[2J\\n")
    subprocess.run(["printf", "child \\\\033c"])
    warnings.warn("warning \\u200b")
    return right(problem)

def register(registry):
    os.write(2, b"register \\x1b[1m\\n")
    registry.add(Variant(name="prints", plan=plan, supports=supports))
"""
ESCAPED = (
    "print \\x1b]0;owned\\x07",
    "error \\u202e",
    "one \\x9b2J",
    "two \\x1b[2J",
    "child \\x1bc",
    "warning \\u200b",
)
SMALL = ["--heads", "1", "--q-len", "4", "--kv-len", "6", "--head-dim", "4", "--device", "emulator"]


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    path = tmp_path / "prints.py"
    path.write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2] / 'plugins')!r})\n{PLUGIN}")
    return str(path)


def test_whatever_writes_it_its_escapes_are_shown(plugin: str, capfd: pytest.CaptureFixture[str]):
    assert main(["compare", *SMALL, "--variants", "prints", "--plugin", plugin]) == 0
    shown = capfd.readouterr()
    require_escaped(shown.out, shown.err)


@pytest.mark.thorough
def test_fuzz_shows_what_is_printed_in_processes_of_its_workers(plugin: str):
    words = ["fuzz", "prints", "--examples", "1", "--seed", "1", "--device", "emulator", "--plugin", plugin]
    done = subprocess.run([sys.executable, "-m", "harness", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    require_escaped(done.stdout, done.stderr)


def require_escaped(out: str, err: str) -> None:
    assert "register \\x1b[1m" in err and all(text in err for text in ESCAPED), err
    assert all(c.isprintable() or c in "\n\t" for c in err + out)
    assert not any(text in out for text in ESCAPED)


def test_a_plugin_that_prints_without_end_is_cut_off_and_goes_on(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plugin_output, "MOST_CHARACTERS", 1000)
    ours, theirs = Pipe(duplex=False)
    output = PluginOutput(ours)
    for _ in range(100):
        os.write(theirs.fileno(), b"x" * 10_000)  # more than the pipe holds: it is read all the time
    theirs.close()
    output.finish(30)
    shown = capfd.readouterr().err
    assert shown.count("x") == 1000 and shown.count("harness: this plugin prints too much") == 1
