"""Products tau q.k in exact arithmetic, and sums over their terms to which rounding errors are relative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.equal_products import mostly_equal_products
from harness.model.array_types import Float64Array

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_] | np.bool_

NEARLY = np.float32(1 - 1e-4)
"""Share of its bound at which Cauchy's inequality counts as an equality."""


@dataclass(frozen=True)
class Products:
    """tau q.k of each row with each key, (b, h, rows, keys), with non-finite elements of q and k replaced by 0."""

    q: Array
    """(b, h, rows, d)."""
    k: Array
    """(b, h, keys, d)."""
    values: Float64Array
    """tau q.k."""
    magnitudes: Array
    """|tau q.k|."""
    sums_of_magnitudes: Array
    """|tau| sum_i |q_i k_i|."""
    sums_of_squares: Array
    """tau^2 sum_i (q_i k_i)^2."""
    repeating: Mask
    """Whether half of the terms or more are equal, so that their roundings are not random. False applies to all."""

    @classmethod
    def of(cls, q: Float64Array, k: Float64Array, tau: float, values: Float64Array | None) -> Products:
        """`values` are tau q.k if these are known; elements that are not finite are arbitrary."""
        q, k = finite(q), finite(k)
        if values is None:
            values = tau * (q @ k.mT)
        single_q, single_k, magnitudes = (x.astype(np.float32) for x in (q, k, np.abs(values)))
        scale = np.float32(abs(tau))
        of_squares = scale * scale * (np.square(single_q) @ np.square(single_k).mT)
        # If Cauchy's bound is reached, all terms are equal.
        bound = NEARLY * q.shape[-1] * of_squares
        return cls(
            q=single_q,
            k=single_k,
            values=values,
            magnitudes=magnitudes,
            sums_of_magnitudes=scale * (np.abs(single_q) @ np.abs(single_k).mT),
            sums_of_squares=of_squares,
            repeating=(np.square(magnitudes) > bound) | mostly_equal_products(single_q, single_k),
        )


def finite(x: Float64Array) -> Float64Array:
    """Replace infinities and NaN by 0. Rows that see them have no budget, so the replacement is arbitrary."""
    is_finite = np.isfinite(x)
    return x if is_finite.all() else np.where(is_finite, x, 0.0)
