"""Errors of scores after their terms, derived from the errors of the products tau q.k.

Each term states what becomes of the errors before it (`score_terms`). Expected errors are scaled by the same derivative
as proved ones. A term's own errors are not assumed to be random, because equal scores have equal errors, and keys share
what terms have per head.

If S is stored in 16 bits, that is before or after any term, so the largest of all is rounded (`ScoreErrors.largest`).

A sink is not a product, so its score has no error.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Float64Array
from harness.operations.attention.budget.product_errors import ProductErrors
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.score_term import Array, ScoreErrors
from harness.operations.attention.scores import ScoreRule


def errors_after_rule(
    rule: ScoreRule,
    scores: Float64Array,
    products: Float64Array,
    of_products: ProductErrors,
    rounding: Roundings,
) -> ScoreErrors:
    """Return the errors of `scores`, given the errors of `products`, tau q.k."""
    errors = ScoreErrors(
        proved=of_products.proved + of_products.query,
        expected=of_products.expected,
        common=of_products.expected_query,
        query=of_products.query,
        expected_query=of_products.expected_query,
        largest=np.abs(products if rule.effects else scores).astype(np.float32),
    ).map(rule.of_keys)
    # The last stage is known; its elements that are not finite were replaced.
    *stages, _ = rule.stages(products)
    magnitudes = [np.abs(each).astype(np.float32) for each in (*stages, rule.of_keys(scores))]
    for effect, before, after in zip(rule.effects, magnitudes, magnitudes[1:]):
        errors = effect.errors(errors, before, after, rounding)
    return errors if rule.sinks is None else errors.map(_with_zero)


def seen(errors: ScoreErrors, visible: npt.NDArray[np.bool_]) -> ScoreErrors:
    """Return the errors of visible keys, and 0 for the others."""
    return errors.map(lambda error: np.where(visible, error, np.float32(0)))


def _with_zero(errors: Array) -> Array:
    """Append 0 for a sink."""
    return np.concatenate((errors, np.zeros((*errors.shape[:-1], 1), np.float32)), axis=-1)
