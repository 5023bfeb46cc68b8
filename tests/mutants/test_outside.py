"""Kernels from outside: the right ones are right, each slip still applies, and one that was hard to find is found."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from harness.model.operation import operation_named
from harness.operations.attention.cases.build import AttentionBuild
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.settings import CampaignSettings
from tests.mutants.outside import FOLDER, OUTSIDE_MUTANTS, load_outside, right_kernels

SMALL = tuple(AttentionBuild(*each) for each in (("float32", 16), ("float16", 24), ("bfloat16", 33), ("float16", 64)))
"""Each kernel takes one. Loops that are unrolled over longer rows, or instrumented, take a minute to compile."""


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


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", right_kernels(), ids=_file)
def test_the_right_kernels_are_right(path: Path):
    mutant = next(mutant for mutant in OUTSIDE_MUTANTS.values() if mutant.patch.file == _file(path))
    right = functools.partial(load_outside, mutant, right=True)
    operation = right().operation
    checks = tuple(operation_named(operation).properties)
    how = CampaignSettings(examples=20, seed=1, checks=checks, builds=SMALL if operation == "attention" else None)
    result = run_campaign(mutant.variant, right, how=how, operation=operation)
    assert result.verdict == "pass", result.reason
