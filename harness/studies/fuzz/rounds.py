"""How a campaign spends its examples: a few in each of six builds of the kernels, then more, then further builds.

A build is a compilation of a second or so, and a mistake may be compiled into some builds alone: so each of the first
ones is met early. Most mistakes show in the first; so it has the largest share. Each further one has a round of its
own; when all are known, they take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count

from harness.model.build import Build

FIRST_SHARES = (0.1, 0.1, 0.08, 0.06, 0.08, 0.06)
"""Of the first `FIRST_EXAMPLES`, or of all where there are fewer, for a first look at each build: a usual campaign has
seen every dtype, short rows and the longest that there are, and the smallest and the largest tile."""
SECOND_SHARES = (0.2, 0.1, 0.07, 0.04, 0.07, 0.04)
"""The same for a second look."""
FIRST_EXAMPLES = 200
LATER_EXAMPLES = 250
"""Per further round."""
SEARCHED = 0.25
"""The share of a build's examples in which Hypothesis searches, at the end of them, where that is at least
`FEWEST_SEARCHED` examples: with fewer it has nothing to steer by."""
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
    has_common: bool = False
    """Whether a share of its examples is of what users ask for most: in a build's first ones."""


def rounds(builds: Sequence[Build], examples: int | None) -> Iterator[Round]:
    """Rounds of `examples` in all; without end where that is None."""
    first = FIRST_EXAMPLES if examples is None else min(examples, FIRST_EXAMPLES)
    looks = len(FIRST_SHARES)
    shares = accumulate((*FIRST_SHARES, *SECOND_SHARES))
    ends = chain((round(share * first) for share in shares), count(first + LATER_EXAMPLES, LATER_EXAMPLES))
    began = 0
    for number, end in enumerate(ends):
        end = end if examples is None else min(end, examples)
        is_first, is_second = number < looks, looks <= number < 2 * looks
        place = number if is_first else number - looks
        # Of a build's second look, what is searched is a share of the first one, too.
        looked_at = FIRST_SHARES[place] + SECOND_SHARES[place] if is_second else 0.0
        searched = 0 if is_first else int(SEARCHED * (looked_at * first if is_second else end - began) + 1e-9)
        own = builds[place : place + 1] or builds
        chosen_until = end - searched if FEWEST_SEARCHED <= searched <= end - began else end
        yield Round(chosen_until, end, tuple(own), not is_second)
        if examples is not None and end >= examples:
            return
        began = end
