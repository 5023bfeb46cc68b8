"""The systematically chosen cases of one round. They do not depend on the results of earlier cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator

from harness.model.cases.axes import CHECK, Axes, Choice
from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.studies.fuzz.drawing.covering import NOTHING, Covering
from harness.studies.fuzz.drawing.examples_per_build import Round

SANITIZED_EACH = 3
"""In a build for the sanitizer, one of this many examples is sanitized, which is about one in ten of all."""
COMMON_EACH, COMMON_AT = 12, (1, 4, 9)
"""Out of every 12 first examples of a build, those at these indices use common problem sizes. None of them is a
sanitized one."""
MOST_DRAWN_AGAIN = 20
"""After this many consecutive draws without a new case, no more are drawn."""

Row = dict[str, str]


class ChosenCases:
    """Cases of the builds in `part`, which follow the rows of `covering`."""

    def __init__(self, axes: Axes, covering: Covering, part: Round, seed: int, sanitized_each: int) -> None:
        self._axes, self._covering = axes, covering
        self._rng = random.Random(hash((seed, part.until)))
        self._builds: Iterator[tuple[int, Build]] = enumerate(itertools.cycle(part.builds))
        self._drawn_again = 0
        self._has_common = part.has_common
        self._sanitized_each = sanitized_each

    def draw(self, is_known: Callable[[Case], bool]) -> tuple[Row, Case] | None:
        """Draw a case that is not known, with its row; None if there is nothing new."""
        while self._drawn_again < MOST_DRAWN_AGAIN:
            self._drawn_again += 1
            number, build = next(self._builds)
            looked_at = (number + 1) % self._sanitized_each == 0 and self._covering.is_sanitized(build)
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
        """The values of a common problem, for a share of the examples in rounds that include such."""
        return self._covering.common(build) if self._has_common and number % COMMON_EACH in COMMON_AT else NOTHING
