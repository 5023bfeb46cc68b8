"""At which lengths a failure occurs: the smallest case once more, a little shorter and longer along each axis.

Shrinking leaves one small case, which looks alike for many mistakes: a kernel that loses its last key and one that
loses the first key of each tile both fail with one key. Their lengths tell them apart.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness.model.case import Case
from harness.model.probed_axis import ProbedAxis
from harness.studies.fuzz.finding import TIMEOUT, Answer
from harness.support.errors import UsageError

MOST_PER_AXIS, MOST_BETWEEN = 48, 16
"""Lengths around the failing one that are tried along one axis, and further ones to find where failures begin."""
FEWEST_FOR_A_RULE = 3
"""Failing lengths that have to agree on a remainder before it is reported."""


@dataclass(frozen=True)
class LengthsTried:
    """What was tried along one axis."""

    axis: str
    """Its name, such as `kv_len`."""
    tile: int
    """See `ProbedAxis.tile`."""
    fails: tuple[int, ...]
    """Lengths at which the case fails in any way, in order."""
    passes: tuple[int, ...]
    """Lengths at which it passes with two draws of inputs, in order. Those that are refused are in neither."""

    @property
    def text(self) -> str:
        """Such as `kv_len 1, 33, 65 (kv_len % 32 is 1); passes at 2 to 32, 34`."""
        fails = in_runs(self.fails)
        if not self.passes:
            return f"every {self.axis} that was tried: {fails}"
        remainder = self._remainder
        rule = "" if remainder is None else f" ({self.axis} % {self.tile} is {remainder})"
        return f"{self.axis} {fails}{rule}; passes at {in_runs(self.passes)}"

    @property
    def _remainder(self) -> int | None:
        """What all failing lengths leave when divided by the tile, and no passing one does."""
        remainders = {length % self.tile for length in self.fails}
        if len(self.fails) < FEWEST_FOR_A_RULE or len(remainders) > 1:
            return None
        (remainder,) = remainders
        return None if any(length % self.tile == remainder for length in self.passes) else remainder


def lengths_around(length: int, tile: int) -> list[int]:
    """What to try for a case that fails at `length`, the most telling ones first."""
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
    """The case that fails, at other lengths, for so many seconds: one axis after the other, each alone.

    A length that is being tried when the time is up is waited for.

    `expect` is called with a case that is going to be asked about. Lengths that make no problem are left out. A case
    that never ends is the last one.
    """
    until = time.monotonic() + seconds
    found: list[LengthsTried] = []
    for number, axis in enumerate(axes):
        # Each axis has its share, so that a slow first one does not use up all of it.
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
            # Two draws of inputs: with one of them a wrong answer may be near the right one by chance.
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
    """Half-way between a length that fails and the next that passes, or the other way round; None where all are known.

    So the length is found from which on it fails.
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
    """The case of that length; None where there is no such problem, as of more rows than a mask allows."""
    try:
        return axis.at(length)
    except UsageError:
        return None


def in_runs(numbers: Iterable[int]) -> str:
    """`1, 2` and `33 to 40` of numbers in order: two neighbours are listed, more are a run."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = (f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return ", ".join(words)
