"""Defines the axes along which the cases of an operation differ, and the values of each axis.

An operation defines its axes and creates a case for any choice of values. The campaign selects choices so that each
one has as many new pairs of values as possible (`harness.studies.fuzz.drawing.covering`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from harness.model.cases.case import Case, Edit
from harness.model.cases.wrapped_build import WrappedBuild
from harness.support.override import override

Item = TypeVar("Item")
Choice = Mapping[str, str]
"""A value for each axis, by the axis's name."""

EDITS, REGIME, CHECK = "edits", "regime", "property"
"""Axes of every operation. `NO_CHECK` is the plainest value of the last one."""
NONE, SOME = "none", "some"
"""Values of `EDITS`, and of other axes that only state whether a case has something."""
NO_CHECK = "none"
CHECK_WEIGHT = 0.2
"""Weight of each property, which takes one or two additional runs."""


class Pick(Protocol):
    """Chooses an item of a sequence uniformly at random, such as with a random number generator or Hypothesis."""

    def __call__(self, among: Sequence[Item], /) -> Item:
        """Return an item of `among`, which is not empty."""
        ...


@dataclass(frozen=True)
class Value:
    """A value of an axis."""

    name: str
    """Description, such as `1 key` or `causal`."""
    weight: float = 1.0
    """Relative frequency after it has occurred with all other values. Low for values that take long or hide
    mistakes."""


class Axes(ABC):
    """The axes of an operation's cases, and the case for each choice of values."""

    @property
    @abstractmethod
    def values(self) -> Mapping[str, Sequence[Value]]:
        """Values of each axis by the axis's name, the plainest first. The axes include `REGIME` and `CHECK`.

        Every value is compatible with the plainest values of all other axes.
        """

    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether a case may have both of these (axis, value) pairs, given in the order of the axes in `values`.

        Returns False if they contradict each other or take too long together.
        """
        return True

    def takes_too_long(self, build: Any, choice: Choice) -> bool:
        """Whether even the fastest case of these values takes too long, although every pair of them is allowed."""
        return False

    @property
    def common(self) -> Sequence[Choice]:
        """Choices for some of the axes that users need most. A campaign runs them early and often."""
        return ()

    @property
    def long(self) -> Sequence[Choice]:
        """Choices of one long, otherwise small problem each. A campaign runs each once, in its first build."""
        return ()

    def far_cases(self, builds: Sequence[Any], seed: int) -> Sequence[Case]:
        """Cases whose offsets exceed 32 bits (`BaseProblem.spread`), of a campaign's builds, which runs each once."""
        return ()

    @abstractmethod
    def case(self, build: Any, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        """Return a case with these values. `rng` determines what they leave open, such as a length within its class.

        With `brief`, open sizes are chosen so that the case runs fast.
        """


class NamedAxes(Axes):
    """Axes defined by tables of values, weights and incompatible pairs."""

    def __init__(
        self,
        names: Mapping[str, Iterable[str]],
        regimes: Iterable[str],
        checks: Sequence[str],
        weights: Mapping[str, Mapping[str, float]],
        apart: Mapping[tuple[str, str], Mapping[str, Collection[str]]],
        common: Sequence[Choice] = (),
        long: Sequence[Choice] = (),
    ) -> None:
        """Create axes from tables. Choices with values that are not in `names` are omitted.

        `names` holds the values of each axis except for `EDITS`, `REGIME` and `CHECK`, which have the values of every
        operation. `weights` are the weights other than 1, by axis; properties have fixed weights. `apart` maps an axis
        and its value to another axis and those of its values that are incompatible; the order of the two does not
        matter. `common` and `long` are the properties of these names.
        """
        self._values = {
            axis: tuple(Value(name, _weight(axis, name, weights)) for name in of_axis)
            for axis, of_axis in {**names, EDITS: (NONE, SOME), REGIME: regimes, CHECK: (NO_CHECK, *checks)}.items()
        }
        self._apart = apart
        self._common, self._long = self._there(common), self._there(long)

    @property
    @override
    def values(self) -> Mapping[str, Sequence[Value]]:
        return self._values

    @property
    @override
    def common(self) -> Sequence[Choice]:
        return self._common

    @property
    @override
    def long(self) -> Sequence[Choice]:
        return self._long

    def _there(self, choices: Sequence[Choice]) -> Sequence[Choice]:
        """Return the choices whose values all exist."""
        names = {axis: {value.name for value in of_axis} for axis, of_axis in self._values.items()}
        return tuple(choice for choice in choices if all(name in names[axis] for axis, name in choice.items()))

    @override
    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        return other[1] not in self._apart.get(one, {}).get(other[0], ()) and (
            one[1] not in self._apart.get(other, {}).get(one[0], ())
        )

    @staticmethod
    def check(choice: Choice) -> str | None:
        """Return the property that a case of this choice checks, as `Case.check`."""
        return None if choice[CHECK] == NO_CHECK else choice[CHECK]

    @staticmethod
    def edits(choice: Choice, rng: random.Random, one_edit: Callable[[], Edit]) -> tuple[Edit, ...]:
        """Draw one to three edits if the choice has some."""
        return tuple(one_edit() for _ in range(rng.randint(1, 3))) if choice[EDITS] == SOME else ()


def _weight(axis: str, name: str, weights: Mapping[str, Mapping[str, float]]) -> float:
    if axis == CHECK:
        return 1.0 if name == NO_CHECK else CHECK_WEIGHT
    return weights.get(axis, {}).get(name, 1.0)


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
