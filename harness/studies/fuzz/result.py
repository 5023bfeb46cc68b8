"""What one campaign came to: its verdict, its failure, and what it met. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.model.case import Case
from harness.studies.fuzz.covering import Coverage
from harness.studies.fuzz.finding import Finding
from harness.studies.fuzz.lengths import LengthsTried

INCOMPLETE = "incomplete"
"""The verdict of a campaign that its time ended early."""


@dataclass(frozen=True)
class Failure:
    """What a campaign found, shrunk."""

    case: Case
    """The smallest that fails in the same way."""
    finding: Finding
    """What is wrong with it."""
    tiles: tuple[int, ...]
    """How many tiles `case` has, each way, such as of rows and of keys per head."""
    first_case: Case
    """The one that was drawn."""
    first_finding: Finding
    """What was wrong with that."""
    larger_case: Case
    """One that is not small at all and fails in the same way: there the pattern of the mistake has room to show."""
    larger_finding: Finding
    """What is wrong with that."""
    examples: int
    """How many were drawn up to that one."""
    shrinking: int
    """How many more were run to shrink it."""
    repeatable: bool
    """Whether the smallest case failed in the same way once more, in a fresh process."""
    remembered: bool
    """Whether it came from the database of past failures."""
    takes: tuple[str, ...] = ()
    """What `case` has beyond the plainest problem, in words."""
    lengths: tuple[LengthsTried, ...] = ()
    """At which other lengths `case` fails and passes, axis by axis."""
    sanitized: Finding | None = None
    """What the sanitizer finds in `case` besides its wrong answer."""


@dataclass(frozen=True)
class CampaignResult:
    """What one campaign came to."""

    variant: str
    verdict: str
    """`pass`; `fail`; `incomplete`: the time was up before all examples were tried, and nothing failed in those that
    were; `undecided`: no case proves anything; or `error`: the variant could not be loaded or took none of the
    problems, or the harness itself failed."""
    reason: str | None
    """Why it is not `pass`, in one line."""
    failure: Failure | None
    examples: int
    """Cases run before a failure was found, or in all; those that the variant refused are among them."""
    refused: int
    """Cases that the variant did not take: nothing is known about those."""
    refusals: tuple[tuple[str, int], ...]
    """Its reasons, the most frequent first, and how often each came."""
    seconds: float
    """Wall-clock time of the search, shrinking left out."""
    shrink_seconds: float
    """Wall-clock time of shrinking."""
    seed: int
    hardest: Case | None
    """The case with the largest error over budget among those that passed."""
    hardest_ratio: float | None
    """That ratio."""
    left_out: tuple[str, ...] = ()
    """Regimes that were not drawn, because the variant declares that it fails there."""

    coverage: Coverage | None = None
    """Which values of the operation's axes met; None where it has none."""
    faults: tuple[str, ...] = ()
    """What the harness itself failed at meanwhile, which says nothing about the variant."""

    undecided: int = 0
    """Cases that it passed but that prove nothing: a trivial wrong answer would have passed, too."""

    @property
    def examples_per_second(self) -> float:
        """Of the search."""
        return self.examples / self.seconds if self.seconds > 0 else math.nan
