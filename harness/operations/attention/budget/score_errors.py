"""Errors of scores after the cap, ALiBi and the bias, derived from the errors of the products tau q.k.

Let x = tau q.k / C with error dx = sigma / C, where rounding C and multiplying by it add two roundings to sigma.
sech^2 is the derivative of tanh, which decreases with |x|:

    |C tanh^(x^) - C tanh(x)| <= sigma sech^2(max(|x| - dx, 0)) + |C tanh x| eps + C eps_absolute,   at most 2 C

since x^ is within dx of x. eps is the error of tanh and of its product with the cap (`rounding_sizes.TANH`). So scores
near the cap are more accurate than their products. If S is stored in 16 bits before the cap, the error
u_16 |x| sech^2 x <= u_16 |tanh x| is at most that of storing it afterwards.

ALiBi subtracts b = slope * distance. The error of b is 4u b, and the difference is rounded by u.

The bias B is stored in float32, so it has no error of its own, and adding it is one rounding:

    |fl(s^ + B) - (s + B)| <= |s^ - s| + u |s + B|     to first order

for a score s^ with the error of the stages before. A kernel that works in powers of two multiplies B by log2 e, which
adds 2u |B|. With ALiBi, B may be added before the penalty is subtracted or to the penalty itself: the intermediate sum
exceeds |s| by at most b + |B|, which adds u |B| (u b is part of the 4u b, since distances below 2^24 are exact). If S
is stored in 16 bits, that is before or after the bias, so the larger of both is rounded (`largest`).

A sink is not a product, so its score has no error.

Expected errors are scaled by the same derivative. The errors of the cap, of ALiBi and of the bias are not assumed to be
random, because equal scores have equal errors of tanh, all keys share the rounding of the slope, and equal sums are
rounded alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.operations.attention.budget.product_errors import ProductErrors
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.scores import ScoreRule

Float64Array = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ScoreErrors:
    """Errors of scores, (b, h, rows, keys)."""

    proved: Array
    expected: Array
    common: Array | float
    """The part of the expected error that all keys share."""
    query: Array | float
    """The part of `proved` that is due to Q's scaling, which all products with that Q share."""
    expected_query: Array | float
    """The part of `common` that is due to Q's scaling."""
    largest: Array
    """The largest magnitude of the score after the cap, ALiBi or the bias, since a kernel may store it after each."""

    def stored(self, rounding: Roundings) -> Array | float:
        """Return the error of storing the score."""
        return rounding.scores * (self.largest + self.proved) + rounding.scores_step if rounding.scores else 0.0

    def where(self, visible: npt.NDArray[np.bool_]) -> ScoreErrors:
        """Return the errors of visible keys, and 0 for the others."""

        def seen(error: Array | float) -> Array | float:
            return np.where(visible, error, np.float32(0)) if isinstance(error, np.ndarray) else error

        return ScoreErrors(
            np.where(visible, self.proved, np.float32(0)),
            np.where(visible, self.expected, np.float32(0)),
            common=seen(self.common),
            query=seen(self.query),
            expected_query=seen(self.expected_query),
            largest=np.where(visible, self.largest, np.float32(0)),
        )


def errors_after_rule(
    rule: ScoreRule,
    scores: Float64Array,
    products: Float64Array,
    errors: ProductErrors,
    rounding: Roundings,
) -> ScoreErrors:
    """Return the errors of `scores`, given the `errors` of `products`, tau q.k."""
    expected, query, expected_query = errors.expected, errors.query, errors.expected_query
    proved = errors.proved + query
    common: Array | float = expected_query
    magnitude: Array = np.abs(scores).astype(np.float32)
    largest = magnitude
    # The score before the bias is added. Where the bias is not finite, the key is not visible or its row has no budget.
    unbiased = magnitude if rule.bias is None else np.abs(scores - rule.bias).astype(np.float32)
    if rule.softcap is not None:
        cap = np.float32(rule.softcap)
        x, dx = np.abs(products).astype(np.float32) / cap, proved / cap
        derivative = (1 / np.square(np.cosh(np.maximum(x - dx, np.float32(0))))).astype(np.float32)
        capped = cap * np.tanh(x)
        own = np.float32(rounding.tanh) * capped + np.float32(rounding.tanh_absolute) * cap
        proved = np.minimum(derivative * proved + own, 2 * cap)
        query, expected_query = (np.minimum(derivative * each, 2 * cap) for each in (query, expected_query))
        expected, common = np.minimum(derivative * expected, 2 * cap), np.minimum(derivative * common + own, 2 * cap)
        largest = np.maximum(largest, capped)
    elif not rule.keeps_products:
        largest = np.maximum(largest, np.abs(products).astype(np.float32))
    if rule.penalty is not None:
        own = np.float32(rounding.penalty) * np.abs(rule.penalty).astype(np.float32)
        own = own + np.float32(rounding.added) * unbiased
        proved, common = proved + own, common + own
    if rule.bias is not None:
        largest = np.maximum(largest, unbiased)
        own = np.float32(rounding.bias) * np.abs(rule.bias).astype(np.float32) + np.float32(rounding.added) * magnitude
        proved, common = proved + own, common + own
    if rule.sinks is not None:
        for error in (proved, expected, common, query, expected_query, largest):
            if isinstance(error, np.ndarray):
                error[..., -1] = 0.0
    return ScoreErrors(proved, expected, common, query, expected_query, largest)
