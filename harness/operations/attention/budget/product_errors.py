"""Errors of the products tau q.k: sigma_j of `error_budget`, proved and expected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import SMALLEST_STEP
from harness.model.array_types import Float64Array
from harness.operations.attention.budget.e4m3_factors import RoundedFactors
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.products import Products

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
    products: Products, tau: np.float32, rounding: Roundings, factors: RoundedFactors | None
) -> ProductErrors:
    """Return the errors of `products`, tau q.k. `tau` is its magnitude."""
    q, k, squares = products.q, products.k, products.sums_of_squares
    d = q.shape[-1]
    terms = np.float32(d + rounding.score_roundings)
    proved = rounding.addition * terms * products.sums_of_magnitudes + np.float32(d * SMALLEST_STEP["float32"]) * tau
    squared_sum = np.square(products.magnitudes)
    expected = rounding.expected_sum(terms) * np.sqrt(squared_sum + squares)
    if factors is not None:
        # A product of subnormal numbers is truncated as if they were normal.
        larger_q, larger_k = (_at_least(x, smallest) for x, smallest in ((q, factors.normal_q), (k, factors.normal_k)))
        proved = proved + np.float32(rounding.score_products(d)) * tau * (larger_q @ larger_k.mT)
        larger_squares = tau * tau * (np.square(larger_q) @ np.square(larger_k).mT)
        expected = expected + np.float32(rounding.score_products(d)) * np.sqrt(squared_sum + larger_squares)
    # Equal products are rounded alike, which is not random.
    repeating = products.repeating
    if repeating.any():
        expected = np.where(repeating, proved, expected)
    query: Array | float = 0.0
    expected_query: Array | float = 0.0
    if rounding.query:
        smallest = np.float32(rounding.query_step) * np.abs(k).sum(axis=-1)[..., None, :]
        rounded = np.float32(rounding.query) * products.sums_of_magnitudes + smallest
        expected_query = (
            np.float32(rounding.query_random) * np.sqrt(squares)
            + np.float32(rounding.query_common) * products.magnitudes
        )
        expected_query = np.minimum(np.where(repeating, rounded, expected_query + smallest), rounded)
        query, proved = rounded, (1 + np.float32(rounding.query)) * proved
    return ProductErrors(proved, expected, query, expected_query)


def _at_least(x: Array, smallest: Float64Array) -> Array:
    """Return magnitudes, with those other than 0 increased to at least `smallest`."""
    return np.where(x == 0, np.float32(0), np.maximum(np.abs(x), smallest.astype(np.float32)))
