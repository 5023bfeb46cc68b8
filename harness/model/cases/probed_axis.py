"""Defines a length of a problem that the fuzzer varies, to find where a failure begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.model.cases.case import Case


@dataclass(frozen=True)
class ProbedAxis:
    """A length of a case's problem."""

    name: str
    """Name for messages, such as `kv_len`."""
    length: int
    """Its value in the case."""
    tile: int
    """Length that a tile covers; kernels may behave differently at its end. 1 without tiles."""
    at: Callable[[int], Case]
    """Returns the case with another length, which is at least 1."""
