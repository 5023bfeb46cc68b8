"""Errors of scores in gradients: those of the products tau q.k, and what score terms make of them.

Each term states what becomes of the errors before it, as in the forward pass (`attention.score_terms`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.equal_products import mostly_equal_products
from harness.model.arithmetic.rounding import U
from harness.model.array_types import Float64Array
from harness.operations.attention.score_term import DerivativeErrors, Floats, ScoreErrors
from harness.operations.attention_backward.oracle import Block
from harness.operations.attention_backward.rounding_sizes import TINY, Roundings


@dataclass(frozen=True)
class ScoreErrorsOfBlock:
    """Errors of a block's scores, (b, h, g, r, c), and of their derivative with respect to tau q.k."""

    proved: Float64Array
    expected: Float64Array
    """Expected errors of scores whose roundings are random; 0 for others."""
    common: Float64Array | None
    """Expected errors that are not random, and are added linearly; None if there are none."""
    largest: Float64Array
    """Magnitude of the largest number stored on the way to the score."""
    derivative: DerivativeErrors

    @classmethod
    def of(cls, block: Block, rounding: Roundings) -> ScoreErrorsOfBlock:
        """Return the errors of the products, and what score terms make of them."""
        d, tau = block.q.shape[-1], block.problem.tau
        products = block.stages[0]
        squares = tau * tau * (np.square(block.q) @ np.square(block.k).mT)
        proved = rounding.proved_sum(d + rounding.scores) * abs(tau) * (np.abs(block.q) @ np.abs(block.k).mT) + d * TINY
        expected = rounding.expected_sum(d + rounding.scores) * np.sqrt(np.square(products) + squares)
        repeating = block.visible & (_equal(np.square(products), d, squares) | mostly_equal_products(block.q, block.k))
        common: Float64Array | None = None
        if repeating.any():
            expected = np.where(repeating, 0.0, expected)
            common = np.where(repeating, proved, 0.0)
        if not block.effects:
            return cls(proved, expected, common, np.abs(products), DerivativeErrors())
        common = np.zeros_like(proved) if common is None else common
        return cls._after_terms(block, rounding, proved, expected, common)

    @classmethod
    def _after_terms(cls, block: Block, rounding: Roundings, *of_products: Float64Array) -> ScoreErrorsOfBlock:
        shape, (b, h, g, r, c) = of_products[0].shape, of_products[0].shape

        def flat(x: npt.ArrayLike) -> npt.NDArray[np.float32]:
            return np.broadcast_to(x, shape).reshape(b, h * g, r, c).astype(np.float32)

        def full(x: npt.ArrayLike) -> Float64Array:
            return np.broadcast_to(x, (b, h * g, r, c)).reshape(shape).astype(np.float64)

        magnitudes = [flat(np.abs(stage)) for stage in block.stages]
        proved, expected, common = map(flat, of_products)
        errors = ScoreErrors(proved, expected, common, query=0.0, expected_query=0.0, largest=magnitudes[0])
        derivative = DerivativeErrors()
        factor: Float64Array | float = 1.0
        for effect, stage, before, after in zip(block.effects, block.stages, magnitudes, magnitudes[1:]):
            own = effect.derivative(stage.reshape(before.shape))
            if own is not None:
                found = effect.derivative_errors(errors, before, rounding.of_terms)
                derivative, factor = _of_product(derivative, factor, found, np.abs(own)), factor * np.abs(own)
            errors = effect.errors(errors, before, after, rounding.of_terms)
        derivative = derivative.map(full)
        return cls(full(errors.proved), full(errors.expected), full(errors.common), full(errors.largest), derivative)


def _of_product(
    one: DerivativeErrors, factor: Float64Array | float, other: DerivativeErrors, other_factor: Float64Array
) -> DerivativeErrors:
    """Return the errors of the product of two derivatives of these magnitudes."""

    def of_product(e: Floats | float, f: Floats | float) -> Floats | float:
        return e * other_factor + factor * f + e * f

    return DerivativeErrors(
        of_product(one.proved, other.proved),
        of_product(one.expected, other.expected),
        of_product(one.common, other.common),
    )


def before_terms(block: Block, scored: ScoreErrorsOfBlock, dS: Float64Array) -> Float64Array:
    """Return the proved error of dZ, given that of dS."""
    f = block.derivative
    if f is None:
        return dS
    off = scored.derivative.proved
    return dS * (f + off) + np.abs(block.ds) * off + 2 * U * (np.abs(block.ds) + dS) * (f + off)


def _equal(square: Float64Array, terms: Float64Array | int, squares: Float64Array) -> npt.NDArray[np.bool_]:
    """Return where all terms of a sum are equal, by Cauchy's bound, so that its roundings are equal and not random.

    `square` is the square of the sum, and `squares` the sum of squares.
    """
    return square > (1 - 1e-4) * terms * squares
