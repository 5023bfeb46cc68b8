"""Finds the lengths at which a failure occurs: runs the smallest case at nearby lengths along each axis.

Shrinking yields one small case, which looks alike for many errors: a kernel that drops its last key and one that drops
the first key of each tile both fail with one key. The failing lengths distinguish them.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.model.cases.axes import ProbedAxis
from harness.model.cases.case import Case
from harness.studies.fuzz.finding import TIMEOUT, Answer
from harness.support.errors import UsageError

MOST_PER_AXIS, MOST_BETWEEN = 48, 16
"""Maximum number of lengths tried around the failing one per axis, and of further ones to find where failures begin."""
FEWEST_FOR_A_RULE = 3
"""Minimum number of failing lengths that have to share a remainder before it is reported."""


@dataclass(frozen=True)
class LengthsTried:
    """The lengths tried along one axis."""

    axis: str
    """Name of the axis, such as `kv_len`."""
    tile: int
    """The tile size along the axis, as in `ProbedAxis.tile`."""
    fails: tuple[int, ...]
    """Lengths at which the case fails in any way, ascending."""
    passes: tuple[int, ...]
    """Lengths at which it passes with two draws of inputs, ascending. Unsupported lengths are in neither tuple."""

    @property
    def text(self) -> str:
        """Such as `kv_len 1, 33, 65 (kv_len % 32 is 1); passes at 2 to 32, 34`."""
        fails = in_runs(self.fails)
        if not self.passes:
            return f"every {self.axis} that was tried: {fails}"
        remainder = self.remainder
        rule = "" if remainder is None else f" ({self.axis} % {self.tile} is {remainder})"
        return f"{self.axis} {fails}{rule}; passes at {in_runs(self.passes)}"

    @property
    def remainder(self) -> int | None:
        """The remainder modulo the tile that all failing lengths and no passing ones have; None if there is none."""
        remainders = {length % self.tile for length in self.fails}
        if len(self.fails) < FEWEST_FOR_A_RULE or len(remainders) > 1:
            return None
        (remainder,) = remainders
        return None if any(length % self.tile == remainder for length in self.passes) else remainder


def lengths_around(length: int, tile: int) -> list[int]:
    """The lengths to try for a case that fails at `length`, the most informative first."""
    ends = (edge + beside for edge in (tile, 2 * tile, 3 * tile) for beside in (0, 1, -1))
    near = (length - 1, length + 1, length + tile, length + 2 * tile, length - tile, 1, 2)
    more = range(1, 2 * tile + 3)
    found = dict.fromkeys(each for each in (*near, *ends, *more) if each > 0 and each != length)
    return list(found)[: MOST_PER_AXIS - 1]


def try_lengths(
    axes: Sequence[ProbedAxis],
    ask: Callable[[Case], Answer],
    expect: Callable[[Case], None],
    seconds: float,
) -> tuple[LengthsTried, ...]:
    """Run the failing case at other lengths, along one axis after the other, for up to `seconds`.

    A run in progress at the time limit is completed. `expect` is called in advance with each case that will be passed
    to `ask`. Lengths without a valid problem are skipped. A case that hangs ends the search.
    """
    until = time.monotonic() + seconds
    found: list[LengthsTried] = []
    for number, axis in enumerate(axes):
        # Each axis has its share of the time, so that a slow first one does not use all of it.
        share = time.monotonic() + (until - time.monotonic()) / (len(axes) - number)
        fails, passes, left_out = {axis.length}, set[int](), set[int]()
        planned = iter(lengths_around(axis.length, axis.tile))
        upcoming = next(planned, None)
        for _ in range(MOST_PER_AXIS + MOST_BETWEEN):
            length, upcoming = upcoming, next(planned, None)
            if length is None:
                length = _between(fails, passes, left_out)
            if length is None or time.monotonic() > share:
                break
            case = case_at(axis, length)
            if case is None:
                left_out.add(length)
                continue
            if upcoming is not None and (following := case_at(axis, upcoming)) is not None:
                expect(following)
            # Two draws of inputs: with a single one, a wrong answer may be close to the right one by chance.
            answers = (ask(each) for each in (case, dataclasses.replace(case, seed=case.seed ^ 1)))
            failed = next((answer for answer in answers if not _passed(answer)), None)
            if failed is None:
                passes.add(length)
            elif failed.finding is None:
                left_out.add(length)
            else:
                fails.add(length)
                if failed.finding.kind == TIMEOUT:
                    return tuple(found)
        found.append(LengthsTried(axis.name, axis.tile, tuple(sorted(fails)), tuple(sorted(passes))))
    return tuple(found)


def _between(fails: set[int], passes: set[int], left_out: set[int]) -> int | None:
    """The midpoint between a failing and the next passing length, or vice versa; None if all lengths are known.

    This bisection finds the length at which failures begin.
    """
    tried = sorted(fails | passes)
    for low, high in itertools.pairwise(tried):
        middle = (low + high) // 2
        if (low in fails) != (high in fails) and middle not in (low, *left_out):
            return middle
    return None


def _passed(answer: Answer) -> bool:
    return answer.finding is None and answer.refusal is None and answer.fault is None


def case_at(axis: ProbedAxis, length: int) -> Case | None:
    """The case with that length; None if there is no such problem, as with more rows than a mask allows."""
    try:
        return axis.at(length)
    except UsageError:
        return None


def in_runs(numbers: Iterable[int]) -> str:
    """Format ascending numbers as `1, 2` or `33 to 40`: runs of more than two are abbreviated."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(words)
