"""Which of a test's parameters the default lane runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def is_exhaustive() -> bool:
    """Whether the exhaustive lane runs, where more examples are drawn, of more kernels."""
    return _lane == "exhaustive"


def set_lane(lane: str) -> None:
    """Which lane runs; conftest.py says so before tests are imported."""
    global _lane
    _lane = lane


_lane = "default"


def thorough_unless(kept: Callable[[Any], bool], values: Iterable[Any]) -> list[Any]:
    """The values for `pytest.mark.parametrize`; those that are not `kept` are not for the default lane."""
    return [value if kept(value) else _marked(value, pytest.mark.thorough) for value in values]


def exhaustive_unless(kept: Callable[[Any], bool], values: Iterable[Any]) -> list[Any]:
    """The values for `pytest.mark.parametrize`; of those that are not `kept` the thorough lane runs a sample."""
    return [value if kept(value) else _marked(value, pytest.mark.exhaustive) for value in values]


def exhaustive(values: Iterable[Any]) -> list[Any]:
    """The values for `pytest.mark.parametrize`, of which the thorough lane runs a sample."""
    return exhaustive_unless(lambda value: False, values)


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    return pytest.param(*_as_tuple(value), marks=mark)


def _as_tuple(value: Any) -> tuple[Any, ...]:
    # A NamedTuple is one value; a plain tuple has a value for each argument.
    return value if type(value) is tuple else (value,)
