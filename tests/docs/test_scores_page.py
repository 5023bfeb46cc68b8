"""The page about scores lists the variants that support its options."""

from __future__ import annotations

import re

import pytest

from harness.model.discovery import discover
from scripts.shown_outputs import ROOT
from variants._features import SCORE_FEATURES

ROWS = {"caps, ALiBi and sinks": SCORE_FEATURES, "biases": ("bias",)}


@pytest.mark.parametrize("row", ROWS)
def test_variants_with_score_terms_are_those_that_take_them(row: str) -> None:
    (line,) = re.findall(rf"(?m)^\| {row} \|.*$", (ROOT / "docs" / "scores.md").read_text())
    takes: dict[str, list[bool]] = {}
    for variant in discover().registry:
        family = re.sub("-(cupy|numba)$", "", variant.name)
        takes.setdefault(family, []).append(set(ROWS[row]) <= set(variant.takes))
    assert all(len(set(each)) == 1 for each in takes.values())
    # A variant that was not registered, as it needs packages that are absent, may be named as well.
    assert {name for name, each in takes.items() if each[0]} == set(re.findall("`(.*?)`", line)) & takes.keys()
