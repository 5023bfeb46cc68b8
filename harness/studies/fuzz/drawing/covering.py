"""Combines values of the operation's axes for a campaign's examples, so that few examples cover many pairs of values.

A covering array of strength two, built row by row: each row takes, axis by axis, the value that completes the most new
pairs, after Cohen et al. 1997 (AETG, doi:10.1109/32.605761). Rows without new pairs use the pairs that occurred least.
So it has no fixed length: a campaign that ends early has covered as much as it could.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.model.cases.axes import CHECK, NO_CHECK, REGIME, Axes, Choice, Value
from harness.model.cases.build import Build
from harness.model.cases.property import SANITIZER
from harness.studies.fuzz.drawing.builds import traits_not_met

BUILD = "build"
"""Name of the axis of compile-time features, which is the campaign's own."""
AGAIN = 0.5
"""The gain of a pair that has occurred: this divided by the number of times, times both weights. A new pair gains 1."""
PAIRING_ROWS = 200
"""Number of rows that serve to cover pairs; later rows repeat pairs and have to be fast."""
CHECKED_LATER = 0.25
"""Share of later rows that check a property, which takes one or two more runs."""
WHOLE_LATER = 0.25
"""Share of later rows whose cases may be long; the others are brief."""
LONG_AFTER = 1
"""Number of common choices that precede the long ones."""
CANDIDATES = 6
"""Rows that are completed in different orders of axes, of which the one with the most new pairs is taken. Cohen et al.
complete 50; a row takes a millisecond."""
NOTHING: Choice = MappingProxyType({})
AlongAxis = tuple[str, str]
Pair = tuple[AlongAxis, AlongAxis]


@dataclass(frozen=True)
class Coverage:
    """What a campaign covered."""

    met: int
    """Number of pairs of values of two axes that occurred in one example that the variant supported."""
    pairs: int
    """Number of possible pairs, of values that the variant supports and that can be combined."""
    axes: tuple[str, ...]
    """Names of the axes."""
    not_met: Mapping[str, tuple[str, ...]]
    """Values that no example had, by axis."""
    values: Mapping[str, tuple[int, int]]
    """Number of covered values and of all values, by axis."""
    not_met_in_builds: tuple[str, ...] = ()
    """Features, alone and combined, and value classes that no example's build included."""


class Covering:
    """Chooses rows and records which pairs have occurred."""

    def __init__(
        self, axes: Axes, builds: Sequence[Build], sanitized: Sequence[Build], left_out: Sequence[str], seed: int
    ) -> None:
        """`sanitized` are the builds that the sanitizer may run, for each of which it compiles separately.

        `left_out` are regimes that are not drawn.
        """
        self._axes = axes
        self._rng = random.Random(seed)
        self._builds = tuple(builds)
        self._names = {build: build.name for build in builds}
        self._sanitized = {build.name for build in sanitized}
        self.values: dict[str, list[Value]] = {BUILD: [Value(name) for name in self._names.values()]}
        for axis, values in axes.values.items():
            self.values[axis] = [v for v in values if axis != REGIME or v.name not in left_out]
        self._order = {axis: place for place, axis in enumerate(self.values)}
        self._weights = {(axis, v.name): v.weight for axis, values in self.values.items() for v in values}
        self._rows = 0
        self.is_brief = False
        """Whether the case of the last row is to be brief."""
        self._tried: Counter[Pair] = Counter()
        self._met: set[Pair] = set()
        self._seen: dict[str, set[str]] = {axis: set() for axis in self.values}
        self._may_meet_cache: dict[Pair, bool] = {}
        # Long cases follow a few common ones, and come once.
        self._common = deque((*axes.common[:LONG_AFTER], *axes.long, *axes.common[LONG_AFTER:]))
        self._once = axes.long

    def common(self, build: Build) -> Choice:
        """The next of the common choices that each campaign includes, cyclically; empty if there are none.

        A long choice is used only once, in the first build, where it takes the least time.
        """
        is_first = build == self._builds[0]
        choice = next((each for each in self._common if is_first or each not in self._once), NOTHING)
        if choice:
            self._common.remove(choice)
            if choice not in self._once:
                self._common.append(choice)
        return {axis: name for axis, name in choice.items() if any(v.name == name for v in self.values[axis])}

    def row(self, build: Build, given: Choice = NOTHING) -> dict[str, str]:
        """A value for each axis, with that build and the other given values."""
        row = {BUILD: self._names[build], **given}
        self._rows += 1
        is_later = self._rows > PAIRING_ROWS
        if is_later and self._rng.random() > CHECKED_LATER:
            row.setdefault(CHECK, NO_CHECK)
        self.is_brief = is_later and self._rng.random() > WHOLE_LATER
        candidates = [self._completed(row) for _ in range(CANDIDATES)]
        best = max(candidates, key=self._new_pairs)
        self._tried.update(self._pairs(best))
        return best

    def withdraw(self, row: Choice) -> None:
        """Report that no case exists for that row in its build: its pairs are tried in others, and sooner."""
        self._rows -= 1
        self._tried.subtract(pair for pair in self._pairs(row) if pair[0][0] != BUILD)

    def is_sanitized(self, build: Build) -> bool:
        """Whether the sanitizer may run that build, and there is a value that requests it."""
        return build.name in self._sanitized and any(value.name == SANITIZER for value in self.values[CHECK])

    def took(self, row: Choice) -> None:
        """Record that an example of that row ran and was supported."""
        self._met.update(self._pairs(row))
        for axis, name in row.items():
            self._seen[axis].add(name)

    @property
    def coverage(self) -> Coverage:
        """The coverage of the recorded rows."""
        seen = {one for pair in self._met for one in pair}
        missing = {
            axis: tuple(value.name for value in values if (axis, value.name) not in seen)
            for axis, values in self.values.items()
        }
        pairs = sum(
            self._may_meet(self._pair((one, v.name), (other, w.name)))
            for one, other in itertools.combinations(self.values, 2)
            for v in self.values[one]
            for w in self.values[other]
        )
        return Coverage(
            len(self._met),
            pairs,
            tuple(self.values),
            {axis: names for axis, names in missing.items() if names},
            {axis: (len(self._seen[axis]), len(values)) for axis, values in self.values.items()},
            traits_not_met(self._builds, self._seen[BUILD]),
        )

    @property
    def so_far(self) -> str:
        """A short summary for the progress bar: pairs, and the coverage of incomplete axes."""
        open_axes = (axis for axis, values in self.values.items() if len(self._seen[axis]) < len(values))
        counts = (f"{axis} {len(self._seen[axis])}/{len(self.values[axis])}" for axis in open_axes)
        return ", ".join((f"{len(self._met):,} pairs", *counts))

    def _completed(self, row: Choice) -> dict[str, str]:
        """The row with a value for each of the other axes, chosen one after the other in a random order."""
        completed = dict(row)
        axes = [axis for axis in self.values if axis not in row]
        self._rng.shuffle(axes)
        for axis in axes:
            completed[axis] = self._best(axis, completed)
        return completed

    def _new_pairs(self, row: Choice) -> int:
        return sum(self._tried[pair] <= 0 and self._may_meet(pair) for pair in self._pairs(row))

    def _best(self, axis: str, row: Choice) -> str:
        gains = [(self._gain((axis, value.name), row), self._rng.random(), value.name) for value in self.values[axis]]
        gain, _, name = max(gains)
        # Where no value fits the row, the plainest contradicts the fewest of the others.
        return name if gain >= 0 else self.values[axis][0].name

    def _gain(self, one: AlongAxis, row: Choice) -> float:
        """The gain of adding the value to this row; negative if it cannot be combined with the row."""
        gain, own_order, own_weight = 0.0, self._order[one[0]], self._weights[one]
        for other in row.items():
            pair = (one, other) if own_order < self._order[other[0]] else (other, one)
            if not self._may_meet(pair):
                return -1.0
            tried = self._tried.get(pair)
            gain += AGAIN / tried * own_weight * self._weights[other] if tried else 1.0
        return gain

    def _pair(self, one: AlongAxis, other: AlongAxis) -> Pair:
        return (one, other) if self._order[one[0]] < self._order[other[0]] else (other, one)

    def _pairs(self, row: Choice) -> list[Pair]:
        return list(itertools.combinations(sorted(row.items(), key=lambda item: self._order[item[0]]), 2))

    def _may_meet(self, pair: Pair) -> bool:
        known = self._may_meet_cache.get(pair)
        if known is None:
            (axis, value), other = pair
            is_sanitized_build = axis == BUILD and other == (CHECK, SANITIZER)
            known = value in self._sanitized if is_sanitized_build else axis == BUILD or self._axes.meet(*pair)
            self._may_meet_cache[pair] = known
        return known
