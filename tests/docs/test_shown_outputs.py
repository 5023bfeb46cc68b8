"""What README.md and docs/ show is what happens: outputs, the example, options, links."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.shown_outputs import (
    ROOT,
    Block,
    Shown,
    blocks,
    comparable,
    harness_arguments,
    parsed,
    run,
    shown_files,
    shown_in,
)

CONSOLE = blocks("console")
COMMANDS = [one for block in CONSOLE for one in shown_in(block)]
EXAMPLE = shown_files()["one_thread_per_row.py"]


def harness(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments, "--device", "emulator"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)


@pytest.mark.thorough
@pytest.mark.parametrize("block", CONSOLE, ids=str)
def test_the_output_is_the_real_one(block: Block) -> None:
    # scripts/shown_outputs.py writes it anew.
    assert [comparable(one.output) for one in run(block)] == [comparable(one.output) for one in shown_in(block)]


def is_refused(one: Shown) -> bool:
    """Whether what is shown is what a wrong call is told."""
    return one.output.startswith("harness: ")


@pytest.mark.parametrize("one", COMMANDS, ids=lambda one: one.command)
def test_the_output_does_not_depend_on_which_variants_there_are(one: Shown) -> None:
    arguments = harness_arguments(one.command)
    if one.place or arguments is None or is_refused(one) or arguments[0] == "emulate":
        return
    options = vars(parsed(arguments))
    chosen = options.get("variants") or options.get("variant") or options.get("from_")
    assert chosen, "name the variants: one more must not change what is shown"
    assert not set("*?[") & set("".join(chosen))


ADDED_OPTION = "--temperature"
"""Which a page adds to the parser: test_score_term_page.py runs such lines behind the page's code."""

COMMAND_LINES = [
    *(one.command for one in COMMANDS if not is_refused(one)),
    *(line for block in blocks("sh") for line in block.text.splitlines() if ADDED_OPTION not in line),
]


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_line_is_one_that_the_parser_takes(line: str) -> None:
    arguments = harness_arguments(line)
    if arguments is not None:
        parsed(arguments)


def test_what_differs_between_machines_is_not_compared_and_all_else_is() -> None:
    table = "name  error /  total\n       budget    MiB\n----  -------  -----\nfa2     0.004   1.25\n\nat (PTX line 66)"
    assert comparable(table) == comparable(table.replace("0.004", "0.005").replace("66", "67"))
    assert comparable(table) != comparable(table.replace("1.25", "1.26"))
    assert comparable(table) != comparable(table + "\nmore")


def test_the_example_is_at_most_twelve_lines_beyond_its_kernel() -> None:
    kernel = re.search(r"kernel = cupy\.RawKernel\(.*?\n\)\n", EXAMPLE, re.DOTALL)
    assert kernel
    lines = [line for line in EXAMPLE.replace(kernel.group(), "").splitlines()[1:] if line.strip()]
    assert len(lines) <= 12


def test_the_example_runs_from_the_variants_folder(tmp_path: Path) -> None:
    for folder in ("harness", "variants"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "variants" / "one_thread_per_row.py").write_text(EXAMPLE)
    arguments = ("--q-len", "70", "--kv-len", "45", "--heads", "4", "--kv-heads", "2", "--head-dim", "24", "--causal")
    ran = harness("compare", "--variants", "one-thread-per-row", *arguments, root=tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"one-thread-per-row +pass", ran.stdout)


def test_the_strategies_are_used_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "test_my_attention.py").write_text(shown_files()["test_my_attention.py"])
    model = "from attention_model import online_softmax\n\n\ndef my_attention(problem, Q, K, V):\n"
    for mutant, status in ((None, 0), ("grouped heads tiled", 1)):
        call = f'    return online_softmax(problem, {{"Q": Q, "K": K, "V": V}}, mutant={mutant!r})["O"]\n'
        (tmp_path / "my_module.py").write_text(model + call)
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(tmp_path)])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": path}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == status, ran.stdout
