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

FIRST_SHARES = (0.06, 0.06, 0.04, 0.04, 0.05, 0.05)
"""Shares of the first `FIRST_EXAMPLES`, or of all where there are fewer, for a first look at each build. Features are
compiled into the first four, so a usual campaign has met each of them within 40 examples; the smallest and the largest
tile follow."""
SECOND_SHARES = (0.24, 0.14, 0.11, 0.06, 0.1, 0.05)
"""Shares of the same examples for a second look at each build."""
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
    """Whether a share of its examples is of what users ask for most: at a first look, and in all of the first build."""


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
        yield Round(chosen_until, end, tuple(own), not is_second or place == 0)
        if examples is not None and end >= examples:
            return
        began = end
