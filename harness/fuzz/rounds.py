"""How a campaign spends its examples: rounds, each of which knows one more build of the kernels than the last.

A build is a compilation of a second or so. Most mistakes show in the first; so the first round has it alone, and what
is compiled already is used again in every later round, where the new build is one of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.strategies import Build

FIRST_SHARES = (0.4, 0.2, 0.2, 0.2)
"""Of the first `FIRST_EXAMPLES`, or of all where there are fewer."""
FIRST_EXAMPLES = 200
LATER_EXAMPLES = 250
"""Per further round."""


@dataclass(frozen=True)
class Round:
    """So many examples with these builds."""

    examples: int
    builds: tuple[Build, ...]


def rounds(builds: Sequence[Build], examples: int | None) -> Iterator[Round]:
    """Rounds of `examples` in all; without end where that is None."""
    first = FIRST_EXAMPLES if examples is None else min(examples, FIRST_EXAMPLES)
    left = examples
    known = 0
    while left is None or left > 0:
        size = round(FIRST_SHARES[known] * first) if known < len(FIRST_SHARES) else LATER_EXAMPLES
        size = max(size, 1)
        if left is not None:
            # What rounding left over goes to the last of the first rounds.
            size = left if left - size < 1 or (known == len(FIRST_SHARES) - 1 and left <= first) else size
            left -= size
        known += 1
        yield Round(size, tuple(builds[:known]))
