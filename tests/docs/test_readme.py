"""What the README shows is what happens: its example, its outputs, its list of commands and options."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def example() -> str:
    found = re.search(r"<!-- example: one_thread_per_row.py -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def shown_output(command: str) -> str:
    found = re.search(rf"<!-- output of: {re.escape(command)} -->\n```text\n(.*?)```", README, re.DOTALL)
    assert found
    return found.group(1)


def harness(*arguments: str, root: Path, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments, "--device", "emulator"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, **options)  # type: ignore


def cells(table: str) -> list[list[str]]:
    """The rows of a table without their errors, whose last digit may depend on the CPU's math library."""
    rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()]
    return [row[:3] + row[5:] for row in rows if len(row) > 5 and row[0].isdigit()]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "one_thread_per_row.py"
    path.write_text(example())
    return path


def test_the_example_is_at_most_twelve_lines_beyond_its_kernel() -> None:
    source = example()
    kernel = re.search(r"kernel = cupy\.RawKernel\(.*?\n\)\n", source, re.DOTALL)
    assert kernel
    lines = [line for line in source.replace(kernel.group(), "").splitlines() if line.strip()]
    assert len(lines) <= 12


def test_the_example_runs_as_a_plugin_and_prints_what_the_readme_shows(plugin: Path, tmp_path: Path) -> None:
    arguments = ("--variants", "fa2-cupy,one*", "--seq-len", "100")
    ran = harness("compare", "--plugin", str(plugin), *arguments, root=ROOT)
    assert ran.returncode == 0, ran.stderr
    shown = shown_output("scripts/compare --plugin one_thread_per_row.py --variants 'fa2-cupy,one*' --seq-len 100")
    assert cells(ran.stdout) == cells(shown)
    assert len(cells(shown)) == 2


def test_the_example_runs_from_the_variants_folder(plugin: Path, tmp_path: Path) -> None:
    root = tmp_path / "repository"
    root.mkdir()
    for folder in ("harness", "variants"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(plugin, root / "variants")
    arguments = ("--q-len", "70", "--kv-len", "45", "--heads", "4", "--kv-heads", "2", "--head-dim", "24", "--causal")
    ran = harness("compare", "--variants", "one*", *arguments, root=root)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "one-thread-per-row" in ran.stdout
    assert "pass" in ran.stdout


def test_a_stray_access_of_the_example_reads_as_the_readme_says(tmp_path: Path) -> None:
    wrong = example().replace("V + (kv_head * kv_len + j) * d;", "V + (kv_head * kv_len + j + kv_len * 2) * d;")
    assert wrong != example()
    path = tmp_path / "one_thread_per_row.py"
    path.write_text(wrong)
    ran = harness("compare", "--plugin", str(path), "--variants", "one*", "--seq-len", "100", root=ROOT)
    assert ran.returncode == 1
    words = ran.stdout.replace(f"{tmp_path}/", "").split()
    shown = re.search(r"what a stray access says:\n\n```text\n(.*?)```", README, re.DOTALL)
    assert shown
    expected = re.sub(r"PTX line \d+", "PTX line", " ".join(shown.group(1).split()))
    assert expected in re.sub(r"PTX line \d+", "PTX line", " ".join(words))


def test_the_first_output_is_the_real_one() -> None:
    ran = harness("compare", root=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert cells(ran.stdout) == cells(shown_output("scripts/compare"))
    assert len(cells(ran.stdout)) == 8


def test_every_command_and_option_has_help_and_stands_in_the_readme() -> None:
    parser = build_parser()
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        assert f"`{name}" in README, name
        for action in command._actions:
            assert action.help, (name, action.option_strings)
            for option in action.option_strings:
                assert option in README or option == "-h", f"{name} {option} is not in the README"


def test_the_traffic_shown_is_the_real_one() -> None:
    command = [sys.executable, "-m", "harness", "traffic", "fa1-cupy", "--lines"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    # What was compiled elsewhere names its files as they were named there.
    real = {re.sub(r"/\S*/(?=variants/)", "", line) for line in ran.stdout.splitlines()}
    shown = shown_output("traffic fa1-cupy --lines").splitlines()
    assert [line for line in shown if line not in real and line != "..."] == []
    assert len(shown) > 20


@pytest.mark.parametrize(
    "words",
    [
        "traffic --sweep seq_len=512..16384 --variants 'fa?-cupy,t*-cupy'",
        "traffic --sweep Bc=8..64 --tile Br=16 --seq-len 512 --variants 'fa?-cupy,t*-cupy'",
    ],
)
def test_the_sweeps_shown_are_the_real_ones(words: str) -> None:
    command = [sys.executable, "-m", "harness", *shlex.split(words)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == shown_output(words)


def test_the_bytes_of_one_query_and_many_keys_are_the_real_ones() -> None:
    sizes = "--heads 8 --kv-heads 2 --q-len 1 --kv-len 4096 --head-dim 128 --dtype bfloat16"
    words = f"compare --variants 'fa2-cupy,split*' {sizes}"
    ran = harness(*shlex.split(words), root=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert cells(ran.stdout) == cells(shown_output(words))
    assert len(cells(ran.stdout)) == 2


def test_the_order_shown_is_the_real_one() -> None:
    ran = harness("show", "fa2-cupy", "--order", "--seq-len", "128", "--variants", "fa?-cupy,t*-cupy", root=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == shown_output("show fa2-cupy --order --seq-len 128 --variants 'fa?-cupy,t*-cupy'")


def test_the_findings_shown_are_the_real_ones() -> None:
    command = "compare --sanitize --plugin tests/plugins/hidden_mistakes.py --variants 'warps*,short*'"
    found = re.search(rf"<!-- findings of: {re.escape(command)} -->\n```text\n(.*?)```", README, re.DOTALL)
    assert found
    arguments = ("--plugin", "tests/plugins/hidden_mistakes.py", "--variants", "warps*,short*", "--sanitize")
    ran = harness("compare", *arguments, root=ROOT)
    assert ran.returncode == 1, ran.stderr

    def plain(text: str) -> str:
        return re.sub(r"PTX line \d+", "PTX line", re.sub(r"/\S*/(?=hidden_mistakes)", "", text))

    lines = found.group(1).splitlines()
    assert len(lines) == 3
    assert [line for line in lines if plain(line) not in plain(ran.stdout)] == []


def test_the_failure_shown_is_the_real_one(tmp_path: Path) -> None:
    # Which case is found first is up to Hypothesis; what the shown case comes to is not.
    found = re.search(r"<!-- fuzz: one-thread-per-row -->\n```text\n(.*?)```", README, re.DOTALL)
    assert found
    shown = [" ".join(line.split()) for line in found.group(1).splitlines()]
    wrong = example().replace("l = l * correction + p;", "l = l + p;")
    assert wrong != example()
    (tmp_path / "one_thread_per_row.py").write_text(wrong)
    (line,) = (line for line in shown if line.startswith("replay "))
    words = shlex.split(line.removeprefix("replay "))
    assert words[:4] == ["python", "-m", "harness", "fuzz"]
    command = [sys.executable, *words[1:], "--device", "emulator"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1, ran.stderr
    printed = [" ".join(line.split()) for line in ran.stdout.splitlines()]
    for name in ("first wrong", "wrong", "looks like"):
        (real,) = (line for line in printed if line.startswith(f"{name} "))
        assert real in shown


def test_the_strategies_are_used_as_the_readme_says(tmp_path: Path) -> None:
    found = re.search(r"<!-- example: test_my_attention.py -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found
    (tmp_path / "test_my_attention.py").write_text(found.group(1))
    model = "from attention_model import online_softmax\n\n\ndef my_attention(problem, Q, K, V):\n"
    for mutant, status in ((None, 0), ("grouped heads tiled", 1)):
        call = f'    return online_softmax(problem, {{"Q": Q, "K": K, "V": V}}, mutant={mutant!r})["O"]\n'
        (tmp_path / "my_attention.py").write_text(model + call)
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), str(tmp_path)])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": path}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == status, ran.stdout
