"""Distributes a campaign's examples: a few in each of the first builds of the kernels, then more, then further builds.

There are seven first builds, or as many as features need (`Build.places_of_features`).

A build is a compilation of about a second, and an error may exist in some builds only, so each of the first ones is
tried early. Most errors show in the first build, which has the largest share. Each further build has a round of its
own; after the last, the builds alternate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count

from harness.model.cases.build import Build

FIRST_SHARES = (0.06, 0.06, 0.04, 0.04, 0.05, 0.05, 0.05)
"""Shares of the first `FIRST_EXAMPLES` (or of all, if fewer) for a first round of each build. The first four include
all features, so a default campaign covers each of them within 40 examples; the smallest and the largest tile follow.
With five features, the seventh build has the last of them alone. Each further build has `FURTHER_SHARE`."""
SECOND_SHARES = (0.24, 0.13, 0.1, 0.06, 0.07, 0.05, 0.0)
"""Shares of the first `FIRST_EXAMPLES` for a second round of each build."""
FURTHER_SHARE, LARGEST_FURTHER_SHARES = 0.05, 0.4
"""Share of the first `FIRST_EXAMPLES` for the only round of each first build after those above, and the largest share
of all of them. Second rounds are shorter by as much."""
FIRST_EXAMPLES = 200
LATER_EXAMPLES = 250
"""Number of examples per further round."""
SEARCHED = 0.25
"""Share of a build's examples that Hypothesis searches, at the end, if that is at least `FEWEST_SEARCHED` examples:
with fewer it cannot adapt."""
FEWEST_SEARCHED = 10


@dataclass(frozen=True)
class Round:
    """A contiguous part of a campaign's examples."""

    chosen_until: int
    """Total number of examples at the end of the systematically chosen ones."""
    until: int
    """Total number of examples at the end of the round, after Hypothesis's search."""
    builds: tuple[Build, ...]
    """The builds that its examples use in turns."""
    has_common: bool = False
    """Whether a share of its examples uses common problem sizes: in first rounds, and in all of the first build."""


def rounds(builds: Sequence[Build], examples: int | None, places: int = 0) -> Iterator[Round]:
    """Rounds of `examples` in all; an infinite sequence if that is None.

    At least the first `places` builds have a round among the first ones.
    """
    first = FIRST_EXAMPLES if examples is None else min(examples, FIRST_EXAMPLES)
    first_shares, second_shares = _shares(places)
    looks = len(first_shares)
    shares = accumulate((*first_shares, *second_shares))
    ends = chain((round(share * first) for share in shares), count(first + LATER_EXAMPLES, LATER_EXAMPLES))
    began = 0
    for number, end in enumerate(ends):
        end = end if examples is None else min(end, examples)
        is_first, is_second = number < looks, looks <= number < 2 * looks
        place = number if is_first else number - looks
        # The search in a build's second round is a share of its first round as well.
        looked_at = first_shares[place] + second_shares[place] if is_second else 0.0
        searched = 0 if is_first else int(SEARCHED * (looked_at * first if is_second else end - began) + 1e-9)
        own = builds[place : place + 1] or builds
        chosen_until = end - searched if FEWEST_SEARCHED <= searched <= end - began else end
        yield Round(chosen_until, end, tuple(own), not is_second or place == 0)
        if examples is not None and end >= examples:
            return
        began = end


def _shares(places: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Shares for the first and the second round of each of the first builds."""
    further = max(0, places - len(FIRST_SHARES))
    each = min(FURTHER_SHARE, LARGEST_FURTHER_SHARES / max(1, further))
    left = 1 - each * further / sum(SECOND_SHARES)
    second = (share * left for share in SECOND_SHARES)
    return (*FIRST_SHARES, *(each,) * further), (*second, *(0.0,) * further)
