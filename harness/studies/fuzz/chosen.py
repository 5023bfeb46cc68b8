"""The cases of one round that are chosen on purpose. None of them depends on what came of those before it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from harness.model.axes import CHECK, Axes, Choice
from harness.model.build import Build
from harness.model.case import Case
from harness.model.property import SANITIZER
from harness.studies.fuzz.covering import NOTHING, Covering
from harness.studies.fuzz.rounds import Round

SANITIZED_EACH = 3
"""Of so many examples in a build that the sanitizer looks at, it looks at one: that is one in ten of all or so."""
COMMON_EACH, COMMON_AT = 12, (1, 4, 9)
"""Of so many examples of a build's first ones, those at these places, none of which is the sanitizer's, are of what
users ask for most."""
MOST_DRAWN_AGAIN = 20
"""Where so many draws one after the other give nothing new, there is nothing new."""

Row = dict[str, str]


class ChosenCases:
    """Those of `part`, by the rows of `covering`."""

    def __init__(self, axes: Axes, covering: Covering, part: Round, seed: int) -> None:
        self._axes, self._covering = axes, covering
        self._rng = random.Random(hash((seed, part.until)))
        self._builds: Iterator[tuple[int, Build]] = enumerate(itertools.cycle(part.builds))
        self._drawn_again = 0
        self._has_common = part.has_common

    def draw(self, is_known: Callable[[Case], bool]) -> tuple[Row, Case] | None:
        """One more, which is not known, with the row that it is of; None where there is nothing new."""
        while self._drawn_again < MOST_DRAWN_AGAIN:
            self._drawn_again += 1
            number, build = next(self._builds)
            looked_at = number % SANITIZED_EACH == SANITIZED_EACH - 1 and self._covering.is_sanitized(build)
            given = {CHECK: SANITIZER} if looked_at else self._common(number, build)
            row = self._covering.row(build, given)
            if self._axes.takes_too_long(build, row):
                self._covering.withdraw(row)
                continue
            case = self._axes.case(build, row, self._rng, self._covering.is_brief)
            if is_known(case):
                continue
            self._drawn_again = 0
            return row, case
        return None

    def _common(self, number: int, build: Build) -> Choice:
        """What is common, in a share of the examples of a round that has it."""
        return self._covering.common(build) if self._has_common and number % COMMON_EACH in COMMON_AT else NOTHING
