"""The code on the page about score terms, pasted where the page says, is all that a term needs."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.shown_outputs import ROOT

PAGE = ROOT / "docs" / "adding-a-score-term.md"
CUDA, NUMBA = Path("variants/_features/scores.cuh"), Path("variants/_features/numba_scores.py")
OPERATION = Path("harness/operations/attention/score_terms.py")
BACKWARD = (
    "compare", "--operation", "attention-backward", "--variants", "bwd-fa2-cupy", "--heads", "3", "--seq-len", "70",
    "--head-dim", "16",
)  # fmt: skip
COMPARE = ("compare", "--variants", "fa2-cupy,fa2-numba", "--heads", "3", "--seq-len", "70", "--head-dim", "16")


def code(language: str) -> list[str]:
    """The page's blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def insert(path: Path, before: str, text: str) -> None:
    """Put the text before the only occurrence of `before`."""
    whole = path.read_text()
    assert whole.count(before) == 1
    path.write_text(whole.replace(before, text + before))


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository in which the page was followed."""
    copy = tmp_path_factory.mktemp("repository")
    for folder in ("harness", "variants"):
        shutil.copytree(ROOT / folder, copy / folder)  # with its bytecode: no process need make it anew
    (cuda,) = code("cuda")
    functions_and_row, field, classes_and_list = code("python")
    insert(copy / CUDA, "// All of a problem's terms,", cuda)
    functions, row = functions_and_row.split("TERMS = {...,")
    insert(copy / NUMBA, "\nTERMS = {\n", functions)
    insert(copy / NUMBA, '}\n"""For each feature', row.rstrip().removesuffix("}") + ",\n")
    classes, terms = classes_and_list.split("TERMS = ")
    insert(copy / OPERATION, "    bias: tuple[str, ...] | None = option(", field)
    insert(copy / OPERATION, "# exp(sink[h])", classes)
    whole = (copy / OPERATION).read_text()
    (copy / OPERATION).write_text(re.sub(r"(?m)^(TERMS: .*?) = \(.*$", rf"\1 = {terms.strip()}", whole))
    return copy


def harness(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness", *arguments]
    environment = os.environ | {"PYTHONPATH": str(copy)}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


def verdicts(copy: Path, *options: str, command: tuple[str, ...] = COMPARE) -> dict[str, tuple[str, bool]]:
    done = harness(copy, *command, "--format", "json", "--temperature", *options)
    assert "temperature" in json.loads(done.stdout)["problem"], done.stderr
    return {row["variant"]: (row["verdict"], row["claim_holds"]) for row in json.loads(done.stdout)["rows"]}


@pytest.mark.parametrize("options", [(), ("--causal", "--softcap", "5", "--alibi", "--bias", "--sinks")])
def test_kernels_with_the_term_pass(followed: Path, options: tuple[str, ...]) -> None:
    right = ("pass", True)
    assert verdicts(followed, *options) == {"fa2-cupy": right, "fa2-numba": right}


def test_gradients_with_the_term_pass(followed: Path) -> None:
    found = verdicts(followed, "--causal", "--softcap", "5", "--bias", command=BACKWARD)
    assert found == {"bwd-fa2-cupy": ("pass", True)}


def test_a_kernel_that_leaves_the_term_out_fails(followed: Path) -> None:
    # In place: in a folder of its own Numba's kernel would be another one, and be compiled again.
    kernel = followed / CUDA
    right = kernel.read_text()
    kernel.write_text(right.replace("return temperature * s;", "return s;"))
    try:
        found = verdicts(followed)
    finally:
        kernel.write_text(right)
    assert found["fa2-cupy"][0] == "fail" and found["fa2-numba"][0] == "pass"


COMMANDS = [line for block in code("sh") for line in block.splitlines() if " fuzz " not in line]


@pytest.mark.thorough
@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_succeed(followed: Path, line: str) -> None:
    shutil.copytree(ROOT / "scripts", followed / "scripts", dirs_exist_ok=True)
    # Each example compiles other kernels.
    line = line.replace("scripts/compare", "python -m harness compare").replace("--examples 15", "--examples 4")
    words = shlex.split(line)
    assert words[0] == "python"
    environment = os.environ | {"PYTHONPATH": str(followed)}
    command = [sys.executable, *words[1:]]
    done = subprocess.run(command, cwd=followed, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_gradients_are_among_the_commands_of_the_page() -> None:
    assert sum("attention-backward" in line for block in code("sh") for line in block.splitlines()) == 2


@pytest.mark.thorough
def test_problems_with_the_term_are_drawn(followed: Path) -> None:
    done = harness(followed, "fuzz", "fa2-cupy", "--examples", "20", "--seed", "1", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    (campaign,) = json.loads(done.stdout)["campaigns"]
    assert campaign["failure"] is None and "temperature with others" not in campaign["not_met"]


@pytest.mark.thorough
def test_usual_campaigns_meet_one_term_more(followed: Path) -> None:
    shutil.copytree(ROOT / "tests", followed / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", followed)
    tests = ("tests/studies/fuzz/drawing/test_covering.py", "tests/studies/fuzz/drawing/test_examples_per_build.py")
    # Operations that have no score terms have the same campaigns as before.
    chosen = ("-k", "not paged and not softmax")
    command = [sys.executable, "-m", "pytest", "-q", "--lane", "thorough", *chosen, *tests]
    environment = os.environ | {"PYTHONPATH": str(followed)}
    done = subprocess.run(command, cwd=followed, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_term_is_described(followed: Path) -> None:
    assert "an input, a temperature per head" in " ".join(harness(followed, "compare", "--help").stdout.split())
    assert ", temperature, " in harness(followed, *COMPARE, "--temperature").stdout.splitlines()[0]
    of_run = " ".join(harness(followed, "run", "--help").stdout.split())
    assert "--temperatures FILE.npy temperatures: (head), in float32 --" in of_run
