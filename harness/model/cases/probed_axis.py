"""A length of a problem that the fuzzer varies to see where a failure begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.model.cases.case import Case


@dataclass(frozen=True)
class ProbedAxis:
    """One length of a case's problem."""

    name: str
    """What messages call it, such as `kv_len`."""
    length: int
    """What it is in the case."""
    tile: int
    """How much of it a tile covers, where kernels may behave differently at the end of one; 1 where there are none."""
    at: Callable[[int], Case]
    """length, at least 1 -> the case with that length."""
