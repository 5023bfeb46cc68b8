"""The wheel, installed without the repository, runs from another folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGED = ("harness", "variants", "pyproject.toml", "setup.py", "README.md", "LICENSE")

pytestmark = [pytest.mark.compiles, pytest.mark.thorough]


def run(folder: Path, *words: str, **variables: str) -> str:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_runs_without_the_repository(tmp_path: Path):
    source, wheels, site, elsewhere = (tmp_path / name for name in ("source", "wheels", "site", "elsewhere"))
    source.mkdir()
    elsewhere.mkdir()
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    run(elsewhere, "pip", "wheel", "-q", "--no-deps", "-w", str(wheels), str(source))
    (wheel,) = wheels.glob("attention_sandbox-*.whl")
    run(elsewhere, "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    packages = {"PYTHONPATH": str(site)}
    (elsewhere / "where.py").write_text("import harness\nprint(harness.__file__)\n")
    assert run(elsewhere, "where", **packages) == f"{site / 'harness' / '__init__.py'}\n"
    names = run(elsewhere, "harness", "list", "--format", "csv", **packages)
    assert names == run(ROOT, "harness", "list", "--format", "csv")
    words = ("--variants", "fa2-cupy,fa2-numba", "--seq-len", "64")
    table = run(elsewhere, "harness", "compare", *words, **packages)
    assert table.count(" pass ") == 2 and table.count(" exact ") == 2
    page = elsewhere / "page.html"
    run(elsewhere, "harness", "report", *words, "--output", str(page), **packages)
    assert page.read_text().startswith("<!DOCTYPE html>")
