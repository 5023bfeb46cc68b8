"""How far off scores may be from sums of products alone: sigma_j of `error_budget`, in its two tiers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.equal_products import mostly_equal_products
from harness.model.arithmetic.rounding import SMALLEST_STEP
from harness.operations.attention.budget.e4m3_factors import RoundedFactors
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ProductErrors:
    """Errors of tau q.k, (b, h, rows, keys)."""

    proved: Array
    """Q's scaling apart."""
    expected: Array
    """Expected errors, as if roundings were random, without Q's scaling."""
    query: Array | float
    """Proved errors from Q's scaling, which all products with that Q share."""
    expected_query: Array | float


def product_errors(
    problem: Problem, q: Array, k: Array, s: Array, rounding: Roundings, factors: RoundedFactors | None
) -> ProductErrors:
    """The errors of tau q.k, of magnitude s, in the two tiers.

    `q` and `k`, (b, h, rows, d) and (b, h, keys, d), are finite; `s` and each error are (b, h, rows, keys).
    """
    d, tau = problem.head_dim, np.float32(abs(problem.tau))
    terms = np.float32(d + rounding.score_roundings)
    magnitude = tau * (np.abs(q) @ np.abs(k).mT)
    proved = rounding.addition * terms * magnitude + np.float32(d * SMALLEST_STEP["float32"]) * tau
    square, squares = s * s, tau * tau * ((q * q) @ (k * k).mT)
    expected = rounding.expected_sum(terms) * np.sqrt(square + squares)
    if factors is not None:
        # A product of numbers that are too small to be normal is cut off as if they were.
        larger_q, larger_k = (_at_least(x, smallest) for x, smallest in ((q, factors.normal_q), (k, factors.normal_k)))
        proved = proved + np.float32(rounding.score_products(d)) * tau * (larger_q @ larger_k.mT)
        larger_squares = tau * tau * (np.square(larger_q) @ np.square(larger_k).mT)
        expected = expected + np.float32(rounding.score_products(d)) * np.sqrt(square + larger_squares)
    # Products that are equal are rounded alike, and nothing is random about that. By Cauchy's equality all are.
    repeating = (square > np.float32(1 - 1e-4) * d * squares) | mostly_equal_products(q, k)
    if repeating.any():
        expected = np.where(repeating, proved, expected)
    query: Array | float = 0.0
    expected_query: Array | float = 0.0
    if rounding.query:
        smallest = np.float32(rounding.query_step) * np.abs(k).sum(axis=-1)[..., None, :]
        rounded = np.float32(rounding.query) * magnitude + smallest
        expected_query = np.float32(rounding.query_random) * np.sqrt(squares) + np.float32(rounding.query_common) * s
        expected_query = np.minimum(np.where(repeating, rounded, expected_query + smallest), rounded)
        query, proved = rounded, (1 + np.float32(rounding.query)) * proved
    return ProductErrors(proved, expected, query, expected_query)


def _at_least(x: Array, smallest: Float64Array) -> Array:
    """Magnitudes, those that are not 0 at least `smallest`."""
    return np.where(x == 0, np.float32(0), np.maximum(np.abs(x), smallest.astype(np.float32)))
