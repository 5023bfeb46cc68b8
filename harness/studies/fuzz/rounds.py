"""How a campaign spends its examples: rounds, each of which knows one more build of the kernels than the last.

A build is a compilation of a second or so. Most mistakes show in the first; so the first round has it alone, and what
is compiled already is used again in every later round, where the new build is one of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, cycle, islice, repeat

from harness.model.build import Build

FIRST_SHARES = (0.3, 0.15, 0.15, 0.1, 0.1, 0.1, 0.1)
"""Of the first `FIRST_EXAMPLES`, or of all where there are fewer: a usual campaign has seen every dtype, rows longer
than 64 elements, and the smallest and the largest tile."""
FIRST_EXAMPLES = 200
LATER_EXAMPLES = 250
"""Per further round."""


@dataclass(frozen=True)
class Round:
    """A stretch of a campaign."""

    until: int
    """How many examples there are to be when it ends."""
    builds: tuple[Build, ...]
    """What it draws from: the known ones, over and over, as many as there will be in the end. So what was drawn in one
    round means the same in another, and a past failure is found again whatever the round."""


def rounds(builds: Sequence[Build], examples: int | None) -> Iterator[Round]:
    """Rounds of `examples` in all; without end where that is None."""
    first = FIRST_EXAMPLES if examples is None else min(examples, FIRST_EXAMPLES)
    sizes = chain((round(share * first) for share in FIRST_SHARES), repeat(LATER_EXAMPLES))
    for number, end in enumerate(accumulate(sizes), start=1):
        known = islice(cycle(builds[:number]), len(builds))
        yield Round(end if examples is None else min(end, examples), tuple(known))
        if examples is not None and end >= examples:
            return
