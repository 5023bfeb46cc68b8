"""Cases of an operation that draws those of another one: what makes them smaller, larger, or longer."""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterator

from harness.model.cases.axes import ProbedAxis
from harness.model.cases.build import Builds
from harness.model.cases.case import Case
from harness.model.operation import Operation


class WrappedCases(ABC):
    """Functions of an `Operation` that the other operation has for its own cases and builds."""

    inner: Operation
    """The other operation."""

    @abstractmethod
    def wrapped(self, case: Case, like: Case) -> Case:
        """Return the case that is like one of the other operation; what that does not have is as in `like`."""

    @abstractmethod
    def unwrapped(self, case: Case) -> Case:
        """Return the case of the other operation that is like this one."""

    @staticmethod
    def unwrapped_builds(builds: Builds) -> Builds:
        """Return the other operation's builds."""
        return Builds([build.forward for build in builds.known])  # type: ignore[attr-defined]

    def simpler(self, case: Case, builds: Builds) -> Iterator[Case]:
        """Yield cases that are smaller in one respect."""
        for smaller in self.inner.simpler(self.unwrapped(case), self.unwrapped_builds(builds)):
            yield self.wrapped(smaller, case)

    def size(self, case: Case, builds: Builds) -> tuple[object, ...]:
        """Return how large the other operation's case is."""
        return self.inner.size(self.unwrapped(case), self.unwrapped_builds(builds))

    def enlarged(self, case: Case, builds: Builds) -> Case:
        """Return a larger case with the same inputs."""
        return self.wrapped(self.inner.enlarged(self.unwrapped(case), self.unwrapped_builds(builds)), case)

    def probed_axes(self, case: Case, builds: Builds) -> list[ProbedAxis]:
        """Return the lengths that may be varied, each alone."""
        return [
            dataclasses.replace(axis, at=functools.partial(self.at, axis, case))
            for axis in self.inner.probed_axes(self.unwrapped(case), self.unwrapped_builds(builds))
        ]

    def at(self, axis: ProbedAxis, case: Case, length: int) -> Case:
        """Return the case with another length along an axis of the other operation's case."""
        return self.wrapped(axis.at(length), case)
