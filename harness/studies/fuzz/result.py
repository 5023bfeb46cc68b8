"""The result of one campaign: its verdict, its failure, and its coverage. Plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.model.cases.case import Case
from harness.studies.fuzz.drawing.covering import Coverage
from harness.studies.fuzz.finding import Finding
from harness.studies.fuzz.shrinking.failing_lengths import LengthsTried

INCOMPLETE = "incomplete"
"""The verdict of a campaign that reached its time limit."""


@dataclass(frozen=True)
class Failure:
    """The failure that a campaign found and minimized."""

    case: Case
    """The smallest case that fails in the same way."""
    finding: Finding
    """What is wrong with `case`."""
    tiles: tuple[int, ...]
    """Number of tiles of `case` along each axis, such as of rows and of keys per head."""
    first_case: Case
    """The case that was drawn."""
    first_finding: Finding
    """What was wrong with `first_case`."""
    larger_case: Case
    """A larger case that fails in the same way and shows the pattern of the error."""
    larger_finding: Finding
    """What is wrong with `larger_case`."""
    examples: int
    """Number of examples up to the failure."""
    shrinking: int
    """Number of cases run for shrinking."""
    repeatable: bool
    """Whether the smallest case failed in the same way again, in a fresh process."""
    remembered: bool
    """Whether it came from the database of past failures."""
    takes: tuple[str, ...] = ()
    """Features of `case` beyond the plainest problem, in words."""
    lengths: tuple[LengthsTried, ...] = ()
    """Other lengths at which `case` fails and passes, by axis."""
    sanitized: Finding | None = None
    """The sanitizer's finding in `case`, in addition to its wrong answer; None if it has none."""


@dataclass(frozen=True)
class CampaignResult:
    """The result of one campaign."""

    variant: str
    verdict: str
    """`pass`; `fail`; `incomplete`: the time limit was reached without a failure; `undecided`: no case is decisive; or
    `error`: the variant could not be loaded or supported none of the problems, or the harness itself failed."""
    reason: str | None
    """Why the verdict is not `pass`, in one line; None if it is."""
    failure: Failure | None
    examples: int
    """Cases run until a failure was found, or in all, including those that the variant does not support."""
    refused: int
    """Number of cases that the variant does not support."""
    refusals: tuple[tuple[str, int], ...]
    """The variant's reasons for that, with their frequencies, the most frequent first."""
    seconds: float
    """Wall-clock time of the search, without shrinking."""
    shrink_seconds: float
    """Wall-clock time of shrinking."""
    seed: int
    hardest: Case | None
    """The passing case with the largest error over budget; None if no case passed."""
    hardest_ratio: float | None
    """Its error over budget."""
    left_out: tuple[str, ...] = ()
    """Regimes that were not drawn, because the variant declares that it fails there."""

    coverage: Coverage | None = None
    """Covered values of the operation's axes; None if it has none."""
    faults: tuple[str, ...] = ()
    """Errors of the harness during the campaign, which say nothing about the variant."""

    stored_failures: int = 0
    """Number of failures of earlier campaigns that were tried before the cases of the seed."""

    undecided: int = 0
    """Number of passing cases that prove nothing: a trivial wrong answer would have passed as well."""

    @property
    def examples_per_second(self) -> float:
        """Examples per second of the search; NaN if it took no time."""
        return self.examples / self.seconds if self.seconds > 0 else math.nan
