"""Which of a test's parameters the default lane runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def is_thorough() -> bool:
    """Whether the thorough or the exhaustive lane runs, where more examples are drawn, of more kernels."""
    return _lane in ("thorough", "exhaustive")


def is_exhaustive() -> bool:
    """Whether the exhaustive lane runs, where time is no object."""
    return _lane == "exhaustive"


def set_lane(lane: str) -> None:
    """Which lane runs; conftest.py says so before tests are imported."""
    global _lane
    _lane = lane


_lane = "default"


def thorough_unless(kept: Callable[[Any], bool], values: Iterable[Any]) -> list[Any]:
    """The values for `pytest.mark.parametrize`; those that are not `kept` are for the thorough lane."""
    return [value if kept(value) else pytest.param(*_as_tuple(value), marks=pytest.mark.thorough) for value in values]


def _as_tuple(value: Any) -> tuple[Any, ...]:
    # A NamedTuple is one value; a plain tuple has a value for each argument.
    return value if type(value) is tuple else (value,)
