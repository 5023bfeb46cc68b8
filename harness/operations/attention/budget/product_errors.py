"""Errors of the products tau q.k: sigma_j of `error_budget`, proved and expected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.equal_products import mostly_equal_products
from harness.model.arithmetic.floating_formats import SMALLEST_STEP
from harness.operations.attention.budget.e4m3_factors import RoundedFactors
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ProductErrors:
    """Errors of tau q.k, (b, h, rows, keys)."""

    proved: Array
    """Proved errors without Q's scaling."""
    expected: Array
    """Expected errors, as if roundings were random, without Q's scaling."""
    query: Array | float
    """Proved errors from Q's scaling, which all products with that Q share."""
    expected_query: Array | float
    """Expected errors from Q's scaling."""


def product_errors(
    problem: Problem, q: Array, k: Array, s: Array, rounding: Roundings, factors: RoundedFactors | None
) -> ProductErrors:
    """Return the errors of tau q.k.

    `q`, (b, h, rows, d), and `k`, (b, h, keys, d), are finite. `s` is |tau q.k|, (b, h, rows, keys).
    """
    d, tau = problem.head_dim, np.float32(abs(problem.tau))
    terms = np.float32(d + rounding.score_roundings)
    magnitude = tau * (np.abs(q) @ np.abs(k).mT)
    proved = rounding.addition * terms * magnitude + np.float32(d * SMALLEST_STEP["float32"]) * tau
    squared_sum, sum_of_squares = s * s, tau * tau * ((q * q) @ (k * k).mT)
    expected = rounding.expected_sum(terms) * np.sqrt(squared_sum + sum_of_squares)
    if factors is not None:
        # A product of subnormal numbers is truncated as if they were normal.
        larger_q, larger_k = (_at_least(x, smallest) for x, smallest in ((q, factors.normal_q), (k, factors.normal_k)))
        proved = proved + np.float32(rounding.score_products(d)) * tau * (larger_q @ larger_k.mT)
        larger_squares = tau * tau * (np.square(larger_q) @ np.square(larger_k).mT)
        expected = expected + np.float32(rounding.score_products(d)) * np.sqrt(squared_sum + larger_squares)
    # Equal products are rounded alike, which is not random. In the case of equality in Cauchy's bound, all are equal.
    repeating = (squared_sum > np.float32(1 - 1e-4) * d * sum_of_squares) | mostly_equal_products(q, k)
    if repeating.any():
        expected = np.where(repeating, proved, expected)
    query: Array | float = 0.0
    expected_query: Array | float = 0.0
    if rounding.query:
        smallest = np.float32(rounding.query_step) * np.abs(k).sum(axis=-1)[..., None, :]
        rounded = np.float32(rounding.query) * magnitude + smallest
        expected_query = (
            np.float32(rounding.query_random) * np.sqrt(sum_of_squares) + np.float32(rounding.query_common) * s
        )
        expected_query = np.minimum(np.where(repeating, rounded, expected_query + smallest), rounded)
        query, proved = rounded, (1 + np.float32(rounding.query)) * proved
    return ProductErrors(proved, expected, query, expected_query)


def _at_least(x: Array, smallest: Float64Array) -> Array:
    """Return magnitudes, with those other than 0 increased to at least `smallest`."""
    return np.where(x == 0, np.float32(0), np.maximum(np.abs(x), smallest.astype(np.float32)))
