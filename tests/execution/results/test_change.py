"""What changed between two results: bytes and errors exactly, times beyond noise, and nothing of what is not known."""

from __future__ import annotations

import math

import pytest

from harness.execution.results.change import Figures, are_apart, changed, time_interval
from harness.support.intervals import Interval

KNOWN = Figures(
    kernel_digest="aa", verdict="pass", read_bytes=100, write_bytes=10, claimed_bytes=110, error_over_budget=0.5,
    time=Interval(1.0, 1.1, 1.2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kernel_digest", "ab"),
        ("verdict", "fail"),
        ("read_bytes", 101),
        ("write_bytes", 9),
        ("claimed_bytes", 111),
        ("error_over_budget", 0.5000001),
        ("error_over_budget", math.nan),
        ("time", Interval(1.21, 1.3, 1.4)),
        ("time", Interval(0.1, 0.2, 0.999)),
    ],
)
def test_each_figure_that_differs_is_named(field: str, value: object) -> None:
    other = Figures(**{**vars(KNOWN), field: value})  # type: ignore[arg-type]
    assert changed(KNOWN, other) == changed(other, KNOWN) == (field,)


def test_what_is_the_same_or_not_known_is_no_change() -> None:
    assert changed(KNOWN, KNOWN) == ()
    assert changed(KNOWN, Figures(verdict="pass")) == changed(Figures(verdict="pass"), KNOWN) == ()
    nan = Figures(verdict="fail", error_over_budget=math.nan)
    assert changed(nan, Figures(verdict="fail", error_over_budget=math.nan)) == ()


def test_times_whose_intervals_touch_cannot_be_told_apart() -> None:
    assert not are_apart(Interval(1.0, 1.1, 1.2), Interval(1.2, 1.3, 1.4))
    assert are_apart(Interval(1.0, 1.1, 1.2), Interval(1.201, 1.3, 1.4))


def test_a_time_of_too_few_samples_is_never_apart_from_another() -> None:
    unsure = time_interval(None, 1.0, None)
    assert unsure is not None and not are_apart(unsure, Interval(50.0, 51.0, 52.0))
    assert time_interval(1.0, None, 2.0) is None
