"""The lanes of the suite, of a suite of five tests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lanes import exhaustive_unless, thorough_unless

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = "import pytest\nfrom harness.support.cache import default_cache\n"
COMPILE = "default_cache().cached('kernel', ('a key',), default_cache)"
"""Stands for a compiler: what is built is built by a function of the harness."""
TESTS = {
    "variants/test_kernels.py": f"""{IMPORTS}
def test_compiles(): {COMPILE}
@pytest.mark.thorough
def test_compiles_more(): {COMPILE}
@pytest.mark.compiles(False)
def test_formula(): pass
@pytest.mark.parametrize("size", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(2, 41))])
def test_sizes(size): pass
""",
    "model/test_plan.py": f"""{IMPORTS}
def test_plan(): pass
@pytest.mark.thorough
def test_many_plans(): pass
""",
}


def outcome(folder: Path, *options: str) -> tuple[int, str]:
    """pytest's exit status, and its last line without the time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder / "tests")]
    environment = {"PYTHONPATH": str(ROOT), "ATTENTION_SANDBOX_CACHE_BYTES": "0"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, re.sub(r" in .*", "", done.stdout.splitlines()[-1]) + done.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    for path, text in TESTS.items():
        (tmp_path / "tests" / path).parent.mkdir(parents=True)
        (tmp_path / "tests" / path).write_text(text.replace(COMPILE, "pass"))
    for name in ("conftest.py", "lanes.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--lane=fast"], "2 passed, 43 deselected"),
        (["--lane=default"], "4 passed, 41 deselected"),
        ([], "4 passed, 41 deselected"),
        # Of 39 sizes two.
        (["--lane=thorough"], "8 passed, 37 deselected"),
        (["--lane=exhaustive"], "45 passed"),
    ],
)
def test_what_a_lane_runs(suite: Path, options: list[str], line: str) -> None:
    assert outcome(suite, *options) == (0, line)


def test_files_that_begin_first_exist() -> None:
    (names,) = re.findall(
        r"^LONGEST = \((.*?)^\)", (ROOT / "tests" / "conftest.py").read_text(), re.MULTILINE | re.DOTALL
    )
    found = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    longest = re.findall(r'"(.*)"', names)
    assert longest and set(longest) <= found


def test_the_longest_begin_first(suite: Path) -> None:
    (suite / "tests" / "test_a_variant_more.py").write_text("def test_it(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", str(suite / "tests")]
    environment = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=suite, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tests/test_a_variant_more.py::test_it\n")


def test_what_compiles_in_the_fast_lane_fails(suite: Path) -> None:
    (suite / "tests" / "model" / "test_plan.py").write_text(f"{IMPORTS}\ndef test_plan(): {COMPILE}\n")
    status, line = outcome(suite, "--lane=fast", "--tb=line")
    assert (status, line) == (1, "1 failed, 1 passed, 42 deselected")


@pytest.mark.parametrize("name", ["thorough", "exhaustive"])
def test_parameters_that_are_not_kept_are_of_a_longer_lane(name: str) -> None:
    unless = {"thorough": thorough_unless, "exhaustive": exhaustive_unless}[name]
    kept, moved, pair = unless(lambda value: value == 1, [1, 2, (3, 4)])
    assert kept == 1
    assert (moved.values, pair.values) == ((2,), (3, 4))
    assert [mark.name for mark in (*moved.marks, *pair.marks)] == [name, name]
