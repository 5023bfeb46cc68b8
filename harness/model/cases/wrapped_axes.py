"""Axes of an operation that draws the cases of another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.model.cases.axes import Axes, Choice, Value
from harness.model.cases.wrapped_build import WrappedBuild
from harness.support.override import override


class WrappedAxes(Axes):
    """The other operation's axes. Subclasses add axes or values, and make the cases."""

    def __init__(self, inner: Axes | None) -> None:
        """`inner`: the other operation's axes, which it has to have."""
        assert inner is not None
        self.inner = inner

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        return self.inner.values

    @override
    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        return self.inner.meet(one, other)

    @override
    def takes_too_long(self, build: WrappedBuild, choice: Choice) -> bool:
        return self.inner.takes_too_long(build.forward, choice)

    @property
    @override
    def common(self) -> Sequence[Choice]:
        return self.inner.common
