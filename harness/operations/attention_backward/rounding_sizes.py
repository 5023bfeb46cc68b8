"""Sizes of the single roundings of a kernel that computes gradients, given its variant's declarations; u = 2^-24."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.model.arithmetic.rounding import (
    ARGUMENT,
    LAMBDA,
    SMALLEST_STEP,
    UNIT_ROUNDOFF,
    addition,
    frame,
)
from harness.model.array_types import Float64Array
from harness.model.numerics import Numerics
from harness.operations.attention.budget.rounding_sizes import Roundings as ForwardRoundings
from harness.operations.attention_backward.problem import BackwardProblem

NUMERICS_USED = ("scores", "weights", "functions", "sums")
"""The fields of `Numerics` that errors of gradients depend on, besides those of score terms."""
SLACK = 1.01
"""Covers (1 + u)^k <= exp(k u (1 + u)) for k up to 10^5, and products of errors of sums."""
TINY = SMALLEST_STEP["float32"]
ABOUT_EQUAL = 0.5
"""Share of Cauchy's bound from which terms count as about equal: their mean is at least 0.7 of their RMS."""
SCORE_ROUNDINGS, SUM_ROUNDINGS = 3, 2
"""Roundings of a score in addition to one per term (scale, its product, log2 e), and of a gradient (tau, last sum)."""


def numerics_used(problem: BackwardProblem) -> tuple[str, ...]:
    """Return the fields of `Numerics` that affect errors on this problem."""
    return (*NUMERICS_USED, *(name for term in problem.terms for name in term.numerics))


@dataclass(frozen=True)
class Roundings:
    """Errors of single roundings, relative unless stated otherwise."""

    addition: float
    nearest: bool
    argument: float
    frame: float
    stored: float
    """Error of storing S and dP."""
    stored_step: float
    """Error of storing the smallest elements of S and dP; absolute."""
    factor: float
    """Error of P and dS as factors of a product."""
    factor_step: float
    """Error of the smallest elements of P and dS as factors; absolute."""
    scores: int
    """Roundings of a score in addition to one per term of the product."""
    of_terms: ForwardRoundings
    """What errors of score terms depend on."""

    @classmethod
    def of(cls, problem: BackwardProblem, numerics: Numerics) -> Roundings:
        """Return the sizes of roundings of a variant with these `numerics` on this problem."""
        u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
        has_16_bits = problem.dtype != "float32"
        stores, rounds = (has_16_bits and x == "problem" for x in (numerics.scores, numerics.weights))
        return cls(
            addition=addition(numerics),
            nearest=numerics.sums == "nearest",
            argument=ARGUMENT[numerics.functions],
            frame=frame(numerics),
            stored=u if stores else 0.0,
            stored_step=step if stores else 0.0,
            factor=u if rounds else 0.0,
            factor_step=step if rounds else 0.0,
            scores=SCORE_ROUNDINGS + sum(term.product_roundings for term in problem.terms),
            of_terms=ForwardRoundings.of(problem, numerics),
        )

    def proved_sum(self, terms: Float64Array | int) -> Float64Array | float:
        """Return the error of `terms` roundings in a sum, relative to the sum of magnitudes."""
        return SLACK * self.addition * terms

    def expected_sum(self, terms: Float64Array | int) -> Float64Array | float:
        """Return the expected error of `terms` roundings, relative to partial sums; at most `proved_sum`."""
        steps = np.minimum(LAMBDA * np.sqrt(terms), terms) if self.nearest else terms
        return SLACK * self.addition * steps
