"""What is said of what changed: each figure as it was and as it is, and nothing of what is noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.execution.results.change import Figures
from harness.studies.compare.baseline import BaselineComparison
from harness.studies.compare.baseline_report import with_changes
from harness.support.intervals import Interval
from harness.text.report import Report

pytestmark = pytest.mark.compiles(False)

BEFORE = Figures(
    kernel_digest="aa", verdict="pass", read_bytes=3 * 2**20, write_bytes=2**20, local_bytes=0,
    error_over_budget=0.25, time=Interval(1.0, 1.01, 1.02),
)  # fmt: skip
EMPTY = Report(lambda: [], lambda: [], lambda: ([], []), lambda: {})


def changes(before: Figures | None, after: Figures, absent: str | None = None) -> list[str]:
    """The lines of the table of changes, under its header."""
    text = with_changes(EMPTY, [BaselineComparison("mine", "then", before, after, absent)], "v1").render("table")
    assert text.startswith("Compared with v1:\n")
    return [" ".join(line.split()) for line in text.rstrip().splitlines()[4:]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "same nothing beyond noise: time 1.0100 -> 1.0100 ms"),
        ({"time": Interval(1.01, 1.03, 1.04)}, "same nothing beyond noise: time 1.0100 -> 1.0300 ms"),
        ({"time": None}, "same nothing"),
        ({"time": Interval(0.9, 0.91, 0.92)}, "same time 1.0100 -> 0.9100 (-9.90 %) ms"),
        ({"kernel_digest": "ab"}, "changed nothing beyond noise: time 1.0100 -> 1.0100 ms"),
        ({"kernel_digest": None}, "- nothing beyond noise: time 1.0100 -> 1.0100 ms"),
        ({"read_bytes": 2**20}, "same total 4.00 -> 2.00 MiB (-50.00 %)"),
        ({"local_bytes": 2**20}, "same total 4.00 -> 5.00 MiB (+25.00 %)"),
        ({"read_bytes": 3 * 2**20 + 1}, "same total 4,194,304 -> 4,194,305 bytes (+1)"),
        (
            {"read_bytes": 2 * 2**20, "write_bytes": 2 * 2**20},
            "same read 3.00 -> 2.00 MiB (-33.33 %); written 1.00 -> 2.00 MiB (+100.00 %)",
        ),
        ({"error_over_budget": 0.2500001}, "same error / budget 0.250000000 -> 0.250000100"),
        ({"error_over_budget": 0.5}, "same error / budget 0.250 -> 0.500"),
        (
            {
                "verdict": "fail",
                "read_bytes": None,
                "write_bytes": None,
                "local_bytes": None,
                "error_over_budget": None,
            },
            "same pass -> fail",
        ),
    ],
    ids=str,
)
def test_each_change_is_told_as_it_was_and_as_it_is(changed: dict[str, Any], said: str) -> None:
    assert changes(BEFORE, replace(BEFORE, **changed)) == [f"mine then {said}"]


def test_what_is_not_there_is_said_and_what_never_ran_is_not() -> None:
    assert changes(None, BEFORE, "did not exist at abc") == ["mine then - it did not exist at abc"]
    never = Figures(verdict="unsupported")
    assert changes(never, never) == []
    assert changes(never, BEFORE) == ["mine then - unsupported -> pass"]
