"""Constant vectors that depend only on the lane number."""

from __future__ import annotations

from collections.abc import Callable


def _table(of_lane: Callable[[int], int], element: str = "i32") -> str:
    return "<" + ", ".join(f"{element} {of_lane(lane)}" for lane in range(32)) + ">"


LANE_ID = _table(lambda lane: lane)
LANEMASK_EQ = _table(lambda lane: 1 << lane)
LANEMASK_LT = _table(lambda lane: (1 << lane) - 1)
LANEMASK_LE = _table(lambda lane: (2 << lane) - 1)
LANEMASK_GT = _table(lambda lane: 0xFFFFFFFF & ~((2 << lane) - 1))
LANEMASK_GE = _table(lambda lane: 0xFFFFFFFF & ~((1 << lane) - 1))
