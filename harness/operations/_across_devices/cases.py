"""Cases of an operation whose problems are those of another one, divided over devices."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.model.cases.axes import Axes, Value, WrappedAxes
from harness.model.cases.case import Case
from harness.model.cases.wrapped_build import WrappedBuild
from harness.model.cases.wrapped_cases import WrappedCases
from harness.model.operation import Operation
from harness.operations._across_devices.problem import DividedProblem
from harness.support.override import override

if TYPE_CHECKING:
    from hypothesis import strategies as st

DEVICES = "devices"
DEVICE_COUNTS: Mapping[str, tuple[int, ...]] = {"2": (2,), "3 or 4": (3, 4), "5 to 8": (5, 6, 7, 8), "1": (1,)}
DRAWN_COUNTS = (2, 3, 1, 4, 5, 6, 7, 8)
"""Devices of a drawn case. It shrinks to two, the fewest that exchange anything."""
PLAIN_DEVICES = 3
"""An odd number, so that lengths are rarely multiples, and more than two, so that blocks are forwarded."""
TAKEN = ("causal",)


@dataclass(frozen=True)
class DividedBuild(WrappedBuild):
    """What the other operation's kernels have compiled in. Subclasses add the problem."""

    @override
    def of_problem(self, problem: Any) -> DividedBuild:
        return dataclasses.replace(self, forward=self.forward.of_problem(problem.whole))

    @override
    def tiles(self, problem: DividedProblem) -> tuple[int, ...]:
        tiles: tuple[int, ...] = self.forward.tiles(problem.whole)
        return tiles


class DividedAxes(WrappedAxes):
    """The other operation's axes, with the number of devices."""

    def __init__(
        self, cases: DividedCases, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> None:
        """`cases` makes the cases; other arguments as of `Operation.axes`."""
        super().__init__(cases.inner.axes(most_tiles, checks, taken(takes)))
        self._cases = cases

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        weights = {"1": 0.3}
        return {**self.inner.values, DEVICES: tuple(Value(name, weights.get(name, 1.0)) for name in DEVICE_COUNTS)}

    @override
    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        own = self.inner.values
        return one[0] not in own or other[0] not in own or super().meet(one, other)


@dataclass(frozen=True, eq=False)
class DividedCases(WrappedCases):
    """Cases that are like those of the other operation, over devices."""

    inner: Operation
    build: type[DividedBuild]

    def builds_of(self, seed: int) -> tuple[DividedBuild, ...]:
        """Return the other operation's builds of a campaign with that seed."""
        return tuple(map(self.build, self.inner.builds_of(seed)))

    @property
    @abstractmethod
    def problem_class(self) -> type[DividedProblem]:
        """The class of the divided problems."""

    @abstractmethod
    def divided(self, problem: Any, like: DividedProblem) -> DividedProblem:
        """Return a problem of the other operation, long enough for its devices, divided as `like`."""

    @override
    def wrapped(self, case: Case, like: Case) -> Case:
        """Return a case like one of the other operation, without the edits that lie outside of its inputs."""
        return case.with_problem(self.divided(case.problem, like.problem))

    @override
    def unwrapped(self, case: Case) -> Case:
        return case.with_problem(case.problem.whole)

    @abstractmethod
    def axes(self, most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]) -> Axes:
        """Return the axes of a campaign; arguments as of `Operation.axes`."""

    @abstractmethod
    def cases(
        self, builds: Sequence[Any], most_tiles: int | None, checks: Sequence[str], takes: Sequence[str]
    ) -> st.SearchStrategy[Case]:
        """Return cases of these builds; arguments as of `Operation.cases`."""


def taken(takes: Sequence[str]) -> list[str]:
    """Return those features that problems over devices have, too."""
    return [name for name in takes if name in TAKEN]
