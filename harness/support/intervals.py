"""How sure a median is, and what that leaves of a ranking: intervals from order statistics, ties where they overlap.

Times of a kernel are not normally distributed (they have a floor and a tail), so nothing is assumed about their shape.
Of n independent samples, the number that lie below the true median is binomial with p = 1/2; the k-th smallest and the
k-th largest sample therefore enclose it with a probability that only n and k decide (Conover 1999, Practical
Nonparametric Statistics, section 3.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
ONE_IN = 40
"""How seldom the median may lie beyond one end: half of what `CONFIDENCE` leaves."""
FEWEST_SAMPLES = 6
"""With fewer, not even the smallest and the largest enclose the median with that confidence: 2 (1/2)^5 > 5 %."""


@dataclass(frozen=True)
class Interval:
    """A median, and between what the true one lies with `CONFIDENCE`. The unit is that of the samples."""

    low: float
    median: float
    high: float

    @property
    def noise(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high - self.low) / (2 * self.median) if self.median else math.inf


def median_interval(samples: Sequence[float]) -> Interval:
    """The interval of these samples. Fewer than `FEWEST_SAMPLES` cannot be that sure: then the ends are infinite."""
    ordered = sorted(samples)
    if len(ordered) < FEWEST_SAMPLES:
        return Interval(-math.inf, statistics.median(ordered), math.inf)
    skipped = _skipped(len(ordered))
    return Interval(ordered[skipped], statistics.median(ordered), ordered[-1 - skipped])


def _skipped(n: int) -> int:
    """The most samples that may be left out at each end: P(fewer than `skipped + 1` of n below) <= 2.5 %."""
    # In whole numbers: 2^-n would underflow.
    most, outcomes, skipped = 2**n // ONE_IN, 1, 0
    while outcomes + math.comb(n, skipped + 1) <= most:
        skipped += 1
        outcomes += math.comb(n, skipped)
    return skipped


def ranks(intervals: Mapping[str, Interval]) -> dict[str, int]:
    """Name -> 1 + how many others are surely smaller. Those that share a rank are a tie: their order is not known."""
    return {
        name: 1 + sum(other.high < interval.low for other in intervals.values()) for name, interval in intervals.items()
    }
