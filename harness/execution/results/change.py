"""Compares two results of one variant on one problem and finds the differences that exceed noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.support.intervals import Interval


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The figures that are compared. Those that are None (unknown) are ignored."""

    kernel_digest: str | None = None
    verdict: str
    read_bytes: int | None = None
    """Counted bytes of global memory at the `sectors` level, as in the next field. Counts are exact: any difference is
    a change."""
    write_bytes: int | None = None
    local_bytes: int | None = None
    """Bytes read plus written in local memory."""
    claimed_bytes: int | None = None
    error_over_budget: float | None = None
    """Largest error over its budget. Inputs are seeded, so any difference is a change. Two NaNs are equal."""
    time: Interval | None = None
    """Time in milliseconds. Times whose intervals overlap are indistinguishable."""

    @property
    def total_bytes(self) -> int | None:
        """Bytes read plus written, of global and local memory."""
        if self.read_bytes is None or self.write_bytes is None:
            return None
        return self.read_bytes + self.write_bytes + (self.local_bytes or 0)


def time_interval(low_ms: float | None, median_ms: float | None, high_ms: float | None) -> Interval | None:
    """The interval of a stored time; its bounds are unknown if there were too few samples. None without a time."""
    if median_ms is None:
        return None
    return Interval(-math.inf if low_ms is None else low_ms, median_ms, math.inf if high_ms is None else high_ms)


def changed(before: Figures, after: Figures) -> tuple[str, ...]:
    """Names of the fields of `Figures` that are known in both and differ beyond noise, in order."""
    exact = (
        "kernel_digest",
        "verdict",
        "read_bytes",
        "write_bytes",
        "local_bytes",
        "claimed_bytes",
        "error_over_budget",
    )
    found = [name for name in exact if _differ(getattr(before, name), getattr(after, name))]
    return (*found, *(["time"] if are_apart(before.time, after.time) else []))


def _differ(before: str | float | None, after: str | float | None) -> bool:
    if before is None or after is None:
        return False
    return before != after and (before == before or after == after)


def are_apart(before: Interval | None, after: Interval | None) -> bool:
    """Whether two times certainly differ: their intervals do not overlap."""
    if before is None or after is None:
        return False
    return before.high < after.low or after.high < before.low
