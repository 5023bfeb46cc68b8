"""Confidence intervals of medians from order statistics, and rankings in which overlapping intervals tie.

Times of a kernel are not normally distributed (they have a lower bound and a tail), so no shape is assumed. Of n
independent samples, the number that lie below the true median is binomial with p = 1/2; so the k-th smallest and the
k-th largest sample enclose it with a probability that depends only on n and k (Conover 1999, Practical Nonparametric
Statistics, section 3.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
ONE_IN = 40
"""1 / the probability that the median lies beyond one given end: half of 1 - `CONFIDENCE`."""
FEWEST_SAMPLES = 6
"""With fewer samples, not even the smallest and the largest enclose the median with that confidence: 2 (1/2)^5 > 5
%."""


@dataclass(frozen=True)
class Interval:
    """A median and its `CONFIDENCE` interval, in the unit of the samples."""

    low: float
    median: float
    high: float

    @property
    def noise(self) -> float:
        """Half the width of the interval, relative to the median."""
        return (self.high - self.low) / (2 * self.median) if self.median else math.inf


def median_interval(samples: Sequence[float]) -> Interval:
    """The interval of these samples. With fewer than `FEWEST_SAMPLES` its ends are infinite."""
    ordered = sorted(samples)
    if len(ordered) < FEWEST_SAMPLES:
        return Interval(-math.inf, statistics.median(ordered), math.inf)
    skipped = _skipped(len(ordered))
    return Interval(ordered[skipped], statistics.median(ordered), ordered[-1 - skipped])


def _skipped(n: int) -> int:
    """The most samples that may be left out at each end: P(fewer than `skipped + 1` of n below) <= 2.5 %."""
    # In integers: 2^-n would underflow.
    most, outcomes, skipped = 2**n // ONE_IN, 1, 0
    while outcomes + math.comb(n, skipped + 1) <= most:
        skipped += 1
        outcomes += math.comb(n, skipped)
    return skipped


def ranks(intervals: Mapping[str, Interval]) -> dict[str, int]:
    """Rank by name: 1 + the number of others that are certainly smaller.

    Equal ranks are ties, whose order is unknown.
    """
    return {
        name: 1 + sum(other.high < interval.low for other in intervals.values()) for name, interval in intervals.items()
    }
