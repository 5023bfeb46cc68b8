"""How a campaign spends its examples: rounds, each of which knows one more build of the kernels than the last.

A build is a compilation of a second or so. Most mistakes show in the first; so it has the largest share. Each further
one has a round of its own; when all are known, they take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, repeat

from harness.model.build import Build

FIRST_SHARES = (0.3, 0.2, 0.15, 0.1, 0.15, 0.1)
"""Of the first `FIRST_EXAMPLES`, or of all where there are fewer: a usual campaign has seen every dtype, short rows and
the longest that there are, and the smallest and the largest tile."""
FIRST_EXAMPLES = 200
LATER_EXAMPLES = 250
"""Per further round."""
SEARCHED = 0.25
"""The share of a round in which Hypothesis searches, where that is at least `FEWEST_SEARCHED` examples: with fewer it
has nothing to steer by."""
FEWEST_SEARCHED = 10


@dataclass(frozen=True)
class Round:
    """A stretch of a campaign."""

    chosen_until: int
    """How many examples there are to be when all that were chosen on purpose were run."""
    until: int
    """How many when it ends, after Hypothesis's search."""
    builds: tuple[Build, ...]
    """What its examples are of, in turn."""


def rounds(builds: Sequence[Build], examples: int | None) -> Iterator[Round]:
    """Rounds of `examples` in all; without end where that is None."""
    first = FIRST_EXAMPLES if examples is None else min(examples, FIRST_EXAMPLES)
    sizes = chain((round(share * first) for share in FIRST_SHARES), repeat(LATER_EXAMPLES))
    began = 0
    for number, end in enumerate(accumulate(sizes)):
        end = end if examples is None else min(end, examples)
        searched = int(SEARCHED * (end - began))
        own = builds[number : number + 1] or builds
        yield Round(end - searched if searched >= FEWEST_SEARCHED else end, end, tuple(own))
        if examples is not None and end >= examples:
            return
        began = end
