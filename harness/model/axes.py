"""What a campaign meets on purpose: the axes along which cases of an operation differ, and the values of each.

An operation says what there is and makes a case of any choice of values; which choices are made, so that every two
values meet, is the campaign's (`harness.studies.fuzz.covering`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from harness.model.case import Case

Item = TypeVar("Item")
Choice = Mapping[str, str]
"""A value for each axis, by name."""

REGIME, CHECK = "regime", "property"
"""The axes that every operation has; `NO_CHECK` is the second one's plainest value."""
NO_CHECK = "none"


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
        """Of each axis, by its name, the plainest first; `REGIME` and `CHECK` are among them.

        Every value goes with the plainest ones of all other axes.
        """

    def meet(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """Whether a case may have both: (axis, value) each, the axes in the order of `values`.

        Not where the two contradict each other, or where together they take too long.
        """
        return True

    @abstractmethod
    def case(self, build: Any, choice: Choice, rng: random.Random) -> Case:
        """A case of these values; `rng` decides what they leave open, such as a length within its class."""
