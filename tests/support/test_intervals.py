"""Intervals of medians: how often they hold, and what they make of ties."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.support.intervals import FEWEST_SAMPLES, Interval, median_interval, ranks


@pytest.mark.parametrize(
    ("n", "skipped"),
    [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5), (50, 17), (100, 39)],
)
def test_order_statistics_are_those_of_the_tables(n: int, skipped: int):
    """Conover, table A3: the largest k with a binomial tail of at most 2.5 %."""
    interval = median_interval(range(n))
    assert (interval.low, interval.high) == (skipped, n - 1 - skipped)


def test_an_interval_holds_the_true_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    true_median = math.log(2)
    held = 0
    for _ in range(2000):
        interval = median_interval(rng.exponential(size=15).tolist())
        held += interval.low <= true_median <= interval.high
    assert 0.95 <= held / 2000 < 0.99


def test_too_few_samples_are_sure_of_nothing():
    interval = median_interval([1.0] * (FEWEST_SAMPLES - 1))
    assert interval == Interval(-math.inf, 1.0, math.inf)
    assert interval.noise == math.inf
    assert median_interval([1.0] * FEWEST_SAMPLES) == Interval(1.0, 1.0, 1.0)


def test_many_samples_do_not_underflow():
    interval = median_interval(list(range(2001)))
    assert 950 < interval.low < 1000 < interval.high < 1050


def test_noise_is_relative():
    assert Interval(0.9, 1.0, 1.1).noise == pytest.approx(0.1)


def test_overlapping_intervals_share_a_rank():
    told = ranks(
        {
            "fast": Interval(1.0, 1.1, 1.2),
            "as fast": Interval(1.15, 1.3, 1.4),
            "slower": Interval(1.3, 1.5, 1.6),
            "slowest": Interval(2.0, 2.0, 2.0),
        }
    )
    assert told == {"fast": 1, "as fast": 1, "slower": 2, "slowest": 4}
