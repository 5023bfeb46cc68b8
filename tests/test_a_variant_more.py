"""A variant more is a file more in `variants/`: everything takes it in, and no other file changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OF_ALL_VARIANTS = re.compile(r"\bdiscover\(\)\.registry\b(?!\.get\()")
"""What stands in a file whose tests see every variant that there is, and with that this one. Others discover all and
take one by its name."""
LISTING = ("tests/cli/test_listing_and_comparing.py", "tests/cli/test_wrong_calls.py")
"""Of the command line, what names every variant."""
ADDED = Path("variants", "attention", "my_idea.py")
NOT_SOURCES = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info")
pytestmark = pytest.mark.compiles


def files_of_all_variants(*folders: str) -> list[str]:
    """The files with tests, relative to the repository, that see every variant; others need not be run again."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("test_*.py")))
    return [str(file.relative_to(ROOT)) for file in files if OF_ALL_VARIANTS.search(file.read_text())]


def sources(root: Path) -> dict[Path, bytes]:
    """Every file below, by its path, but for what tools leave."""
    found = {}
    for folder, names, files in os.walk(root):
        names[:] = set(names) - NOT_SOURCES(folder, names)
        for file in set(files) - NOT_SOURCES(folder, files):
            path = Path(folder, file)
            if path.is_file():
                found[path.relative_to(root)] = path.read_bytes()
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the repository with the variant `my-idea`: no tiles, no claim, float32 alone."""
    copy = tmp_path / "sandbox"
    copy.mkdir()
    for path in ("harness", "variants", "tests", "scripts", "docs"):
        if (ROOT / path).exists():
            shutil.copytree(ROOT / path, copy / path)  # with its bytecode: no process need make it anew
    for path in ("pyproject.toml", "README.md", "requirements.txt"):
        shutil.copy(ROOT / path, copy / path)
    plain = (ROOT / "tests" / "plugins" / "one_thread_per_row.py").read_text()
    (copy / ADDED).write_text(plain.replace("one-thread-per-row", "my-idea").replace("one_thread_per_row", "my_idea"))
    return copy


def run(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, "-m", *words], cwd=tree, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done


def assert_one_file_more(tree: Path) -> None:
    before, now = sources(ROOT), sources(tree)
    assert {path for path in now if now[path] != before.get(path)} == {ADDED}


def test_it_is_listed_and_compared(tree: Path) -> None:
    assert "my-idea" in run(tree, "harness", "list").stdout
    words = ("--variants", "my-idea,fa2-cupy", "--seq-len", "64", "--format", "json")
    rows = json.loads(run(tree, "harness", "compare", *words).stdout)["rows"]
    assert {row["variant"]: row["verdict"] for row in rows} == {"my-idea": "pass", "fa2-cupy": "pass"}
    assert_one_file_more(tree)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tests",
    [
        ("--lane=thorough", "tests/variants", "tests/hardware", "tests/execution", "tests/studies", "-k", "my-idea"),
        (*files_of_all_variants("tests/execution", "tests/model", "tests/text", "tests/studies/tune"), *LISTING),
        # A patch is of one file, whatever lies beside that.
        ("tests/mutants", "-k", "not killed and not oracle and not every_patch_applies and not each_slip"),
    ],
    ids=["those of each variant", "those of all variants", "those of the mutants"],
)
def test_the_suite_passes(tree: Path, tests: Sequence[str]) -> None:
    done = run(tree, "pytest", "-q", "-n0", "-p", "no:cacheprovider", *tests)
    assert " passed" in done.stdout
    assert_one_file_more(tree)
