"""Kernels from outside: the right ones are right, each slip still applies, and one that was hard to find is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from lanes import thorough_unless

from harness.cli import main
from tests.mutants.outside import FOLDER, OUTSIDE_MUTANTS, load_outside, right_kernels

FOUND = ("warp_row.py",)
"""Kernels that the default lane runs."""


def _file(path: Path) -> str:
    """As slips name it."""
    return str(path.relative_to(FOLDER))


def test_there_are_as_many_as_were_written():
    styles = {mutant.style for mutant in OUTSIDE_MUTANTS.values()}
    assert len(OUTSIDE_MUTANTS) >= 60 and len(styles) >= 8
    assert {mutant.patch.file for mutant in OUTSIDE_MUTANTS.values()} == {_file(path) for path in right_kernels()}


@pytest.mark.parametrize("name", OUTSIDE_MUTANTS)
def test_each_slip_applies_and_loads(name: str):
    mutant = OUTSIDE_MUTANTS[name]
    text = (FOLDER / mutant.patch.file).read_text()
    assert mutant.patch.apply(text) != text
    assert load_outside(mutant).name == name


@pytest.mark.parametrize("path", thorough_unless(lambda path: _file(path) in FOUND, right_kernels()), ids=_file)
def test_the_right_kernels_are_right(path: Path, capsys: pytest.CaptureFixture):
    (name,) = {mutant.variant for mutant in OUTSIDE_MUTANTS.values() if mutant.patch.file == _file(path)}
    assert main(["fuzz", name, "--plugin", str(path), "--examples", "20", "--seed", "1"]) == 0, capsys.readouterr().out
