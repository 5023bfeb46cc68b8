"""How far off a score may be once it is capped and penalized, from how far its product tau q.k may be.

With x = tau q.k / C, off by dx = sigma / C, in which C's own rounding and its product are two more of the product's,
and sech^2 the derivative of tanh, which falls with |x|:

    |C tanh^(x^) - C tanh(x)| <= sigma sech^2(max(|x| - dx, 0)) + |C tanh x| eps + C eps_absolute,   at most 2 C

since x^ is within dx of x. eps is the tangent's own error, and of its product with the cap (`rounding.TANH`). So a
score that is near its cap is surer than the product it comes from. Where S is stored in 16 bits before the cap,
u_16 |x| sech^2 x <= u_16 |tanh x| is no more than after it.

ALiBi takes b = slope distance off: b is off by 4u b, and the difference by u of itself. A sink is no product: nothing
is off but what its exponential adds.

In the expected tier sigma shrinks by the same derivative. What the cap and ALiBi add is not taken for random: equal
scores have equal tangents, and a slope that is rounded is so for all keys.
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
    """All (b, h, rows, keys)."""

    proved: Array
    expected: Array
    common: Array | float
    """The part of the expected error that all keys share."""
    query: Array | float
    """The part of `proved` that is due to Q's scaling, which all products with that Q share."""
    expected_query: Array | float
    """The part of `common` that is due to Q's scaling."""
    largest: Array
    """The largest magnitude of the score from the cap on: where it is stored in between, that is what is rounded."""

    def stored(self, rounding: Roundings) -> Array | float:
        """What storing the score costs."""
        return rounding.scores * (self.largest + self.proved) + rounding.scores_step if rounding.scores else 0.0

    def where(self, visible: npt.NDArray[np.bool_]) -> ScoreErrors:
        """Nothing elsewhere."""

        def seen(error: Array | float) -> Array | float:
            return np.where(visible, error, np.float32(0)) if isinstance(error, np.ndarray) else error

        return ScoreErrors(
            np.where(visible, self.proved, np.float32(0)),
            np.where(visible, self.expected, np.float32(0)),
            common=seen(self.common),
            query=seen(self.query),
            expected_query=seen(self.expected_query),
            largest=self.largest,
        )


def after_the_rule(
    rule: ScoreRule,
    scores: Float64Array,
    products: Float64Array,
    errors: ProductErrors,
    rounding: Roundings,
) -> ScoreErrors:
    """`errors` are those of tau q.k, `products`."""
    expected, query, expected_query = errors.expected, errors.query, errors.expected_query
    proved = errors.proved + query
    common: Array | float = expected_query
    largest: Array = np.abs(scores).astype(np.float32)
    if rule.softcap is not None:
        cap = np.float32(rule.softcap)
        x, off = np.abs(products).astype(np.float32) / cap, proved / cap
        slope = (1 / np.square(np.cosh(np.maximum(x - off, np.float32(0))))).astype(np.float32)
        capped = cap * np.tanh(x)
        own = np.float32(rounding.tanh) * capped + np.float32(rounding.tanh_absolute) * cap
        proved = np.minimum(slope * proved + own, 2 * cap)
        query, expected_query = (np.minimum(slope * each, 2 * cap) for each in (query, expected_query))
        expected, common = np.minimum(slope * expected, 2 * cap), np.minimum(slope * common + own, 2 * cap)
        largest = np.maximum(largest, capped)
    elif rule.penalty is not None:
        largest = np.maximum(largest, np.abs(products).astype(np.float32))
    if rule.penalty is not None:
        penalty = np.abs(rule.penalty).astype(np.float32)
        own = np.float32(rounding.penalty) * penalty + np.float32(rounding.penalized) * np.abs(scores).astype(
            np.float32
        )
        proved, common = proved + own, common + own
    if rule.sinks is not None:
        for error in (proved, expected, common, query, expected_query, largest):
            if isinstance(error, np.ndarray):
                error[..., -1] = 0.0
    return ScoreErrors(proved, expected, common, query, expected_query, largest)
