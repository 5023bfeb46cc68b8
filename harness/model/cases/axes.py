"""What a campaign meets on purpose: the axes along which cases of an operation differ, and the values of each.

An operation says what there is and makes a case of any choice of values; which choices are made, so that every two
values meet, is the campaign's (`harness.studies.fuzz.drawing.covering`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from harness.model.cases.case import Case
from harness.support.override import override

Item = TypeVar("Item")
Choice = Mapping[str, str]
"""A value for each axis, by name."""

REGIME, CHECK = "regime", "property"
"""The axes that every operation has; `NO_CHECK` is the second one's plainest value."""
NO_CHECK = "none"
CHECK_WEIGHT = 0.2
"""Weight of each property: it takes a run or two more."""


class Pick(Protocol):
    """Chooses one of several, each as likely as the other: a random number generator's, or Hypothesis's."""

    def __call__(self, among: Sequence[Item], /) -> Item:
        """One of `among`, which has at least one."""
        ...


@dataclass(frozen=True)
class Value:
    """One value of an axis."""

    name: str
    """In words, such as `1 key` or `causal`."""
    weight: float = 1.0
    """How readily it comes up again once it has met all others: low for what takes long, or hides mistakes."""


class Axes(ABC):
    """Along which axes cases differ, and the case of each choice."""

    @property
    @abstractmethod
    def values(self) -> Mapping[str, Sequence[Value]]:
        """The values of each axis, by its name, the plainest first; `REGIME` and `CHECK` are among the axes.

        Every value goes with the plainest ones of all other axes.
        """

    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether a case may have both: (axis, value) each, the axes in the order of `values`.

        Not where the two contradict each other, or where together they take too long.
        """
        return True

    def takes_too_long(self, build: Any, choice: Choice) -> bool:
        """Whether even the quickest case of these values takes too long, although any two of them may meet."""
        return False

    @property
    def common(self) -> Sequence[Choice]:
        """Choices along some of the axes that are what users ask for most: a campaign meets them early and often."""
        return ()

    @property
    def long(self) -> Sequence[Choice]:
        """Choices of one long and otherwise small problem each: a campaign meets each once, in its first build."""
        return ()

    @abstractmethod
    def case(self, build: Any, choice: Choice, rng: random.Random, brief: bool = False) -> Case:
        """A case of these values; `rng` decides what they leave open, such as a length within its class.

        `brief`: one of the quicker ones, where sizes are left open.
        """


class NamedAxes(Axes):
    """Axes of which tables say how readily values come up again, and what does not go together."""

    def __init__(
        self,
        names: Mapping[str, Iterable[str]],
        weights: Mapping[str, Mapping[str, float]],
        apart: Mapping[tuple[str, str], Mapping[str, Collection[str]]],
        common: Sequence[Choice] = (),
        long: Sequence[Choice] = (),
    ) -> None:
        """`names` of the values of each axis; `weights` of those that are not 1, by axis; properties have their own.

        `apart`: an axis and its value -> another axis -> values of that one. Either of the two may be told first.
        `common`, `long`: see the properties. Choices of values that are not among `names` are left out.
        """
        self._values = {
            axis: tuple(Value(name, _weight(axis, name, weights)) for name in of_axis)
            for axis, of_axis in names.items()
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
        """Those of which each value is one of its axis."""
        names = {axis: {value.name for value in of_axis} for axis, of_axis in self._values.items()}
        return tuple(choice for choice in choices if all(name in names[axis] for axis, name in choice.items()))

    @override
    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        return other[1] not in self._apart.get(one, {}).get(other[0], ()) and (
            one[1] not in self._apart.get(other, {}).get(one[0], ())
        )


def _weight(axis: str, name: str, weights: Mapping[str, Mapping[str, float]]) -> float:
    if axis == CHECK:
        return 1.0 if name == NO_CHECK else CHECK_WEIGHT
    return weights.get(axis, {}).get(name, 1.0)
