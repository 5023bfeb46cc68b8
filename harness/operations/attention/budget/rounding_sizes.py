"""Sizes of a kernel's single roundings, given its variant's declarations; u = 2^-24.

Roundings of all operations, and their sources, are in `harness.model.arithmetic.rounding`. In addition, the CUDA C++
Programming Guide gives logf 1 ulp, __logf 2^-21.41 absolute near 1.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import (
    ARGUMENT,
    CUBIC,
    E4M3_CUT,
    E4M3_DEPTH,
    E4M3_SMALLEST_NORMAL,
    E4M3_SMALLEST_STEP,
    E4M3_STEP,
    E4M3_UNIT_ROUNDOFF,
    EXP,
    LAMBDA,
    SMALLEST_STEP,
    UNIT_ROUNDOFF,
    U,
    addition,
    division,
    frame,
)
from harness.model.numerics import Numerics
from harness.operations.attention.problem import Problem

Array = npt.NDArray[np.float32]

E4M3_WEIGHT = 2.0**6
"""Minimum value to which P of the maximum is scaled before it is rounded to e4m3."""
NORMAL_WEIGHT = E4M3_SMALLEST_NORMAL / E4M3_WEIGHT
"""The smallest weight, relative to the maximum's, that is a normal number of e4m3."""
MOST_IDLE_STEPS = 32
"""Maximum steps of 32 keys of which a row sees none, in tiles of which some row of its block sees a key. They only
truncate its sum. Tiles have up to 256 keys, and blocks up to 256 rows."""


@dataclass(frozen=True)
class Roundings:
    """Largest errors of single roundings, relative unless stated otherwise."""

    numerics: Numerics
    """The declarations, for what score terms round."""
    fast: bool
    """Whether a kernel works in powers of two, with fast functions."""
    scores: float
    """Storing S."""
    scores_step: float
    """Storing the smallest scores; absolute."""
    query: float
    """All roundings of an element of Q that is scaled before the product; subnormal elements aside."""
    query_random: float
    """Independent roundings of each element of Q, as expected over many elements."""
    query_common: float
    """Roundings of the factors that scale Q, which all elements share."""
    query_step: float
    """Scaling the smallest elements of Q; absolute, of q tau."""
    weights: float
    """Storing P."""
    weights_step: float
    """Storing the smallest weights; absolute."""
    output: float
    """Storing O."""
    output_step: float
    """Storing the smallest elements of O; absolute."""
    e4m3: bool
    """Whether tensor cores multiply numbers of e4m3, so that `score_products` and `value_products` apply."""
    addition: float
    """One step of a sum, including the product; for e4m3, in addition to `score_products` and `value_products`."""
    random: bool
    """Whether roundings of a sum are equally likely up and down."""
    exp: float
    """An exponential, independent of its argument."""
    argument: float
    """An exponential, per unit of its argument, including the subtraction of the maximum."""
    frame: float
    """An exponential, per unit of the score and of the maximum subtracted from it."""
    cubic: float
    """An exponential whose fraction is a polynomial's, the same in both sums."""
    headroom: float
    """How far the subtracted maximum may be below that of the keys so far; absolute. 2^headroom of weights."""
    rescale: float
    """A weight, each time the maximum rises or, if O is divided incrementally, a tile ends."""
    division: float
    """The quotient O / l."""
    score_roundings: int
    """Number of roundings of a score in addition to one per element of q.k: scale, its product, log2 e, those of
    terms."""
    log: float
    """lse, per unit of lse."""
    log_of_sum: float
    """lse, per unit of log l."""
    log_absolute: float
    """lse; absolute."""

    @classmethod
    def of(cls, problem: Problem, numerics: Numerics) -> Roundings:
        """Return the sizes of roundings of a variant with these `numerics` on this problem."""
        has_16_bits = problem.dtype != "float32"
        u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
        stores_scores, stores_weights = (has_16_bits and x == "problem" for x in (numerics.scores, numerics.weights))
        fast = numerics.functions == "fast"
        nearest = numerics.sums == "nearest"
        scalings = numerics.scaled_q
        e4m3 = numerics.factors == "e4m3"
        weight, weight_step = (E4M3_UNIT_ROUNDOFF, E4M3_SMALLEST_STEP / E4M3_WEIGHT) if e4m3 else (u, step)
        return cls(
            numerics=numerics,
            fast=fast,
            scores=u if stores_scores else 0.0,
            scores_step=step if stores_scores else 0.0,
            query=(1 + u) ** scalings - 1,
            query_random=LAMBDA * math.sqrt(scalings) * u,
            query_common=max(scalings - 1, 0) * u,
            query_step=scalings * step,
            weights=weight if stores_weights or e4m3 else 0.0,
            weights_step=weight_step if stores_weights or e4m3 else 0.0,
            output=u,
            output_step=step,
            e4m3=e4m3,
            addition=addition(numerics),
            random=nearest,
            exp=EXP,
            argument=ARGUMENT[numerics.functions],
            # A product with the folded scale for the key, and one for the maximum.
            frame=frame(numerics),
            cubic=CUBIC if numerics.cubic_exp else 0.0,
            headroom=numerics.headroom * math.log(2),
            # An exponential and a product. FlashAttention-1's weights: (exp l) / l_new, times O, four more.
            rescale=(5 if numerics.divides_last else 9) * U,
            # With dropout, the roundings of the factor on kept weights and of its product.
            # Reciprocal and product, although in float32 that product is the output's rounding.
            division=division(numerics) + (2 * U if problem.dropout else 0.0),
            score_roundings=(3 if fast else 2) + sum(term.product_roundings for term in problem.terms),
            # Sum; if fast, also the product with ln 2, ln 2 itself, and the maximum's product with log2 e.
            log=4 * U if fast else U,
            log_of_sum=4 * U if fast else 2 * U,
            log_absolute=2.0**-21 if fast else 0.0,
        )

    def expected_sum(self, terms: Array) -> Array:
        """Return the expected error of `terms` roundings in a sum, relative to its partial sums."""
        steps: Array = np.minimum(LAMBDA * np.sqrt(terms), terms) if self.random else terms
        return self.addition * steps

    def score_products(self, elements: int) -> float:
        """Return the error of summing e4m3 products in a score, relative to the sum of their magnitudes."""
        return E4M3_STEP * math.ceil(elements / E4M3_DEPTH) if self.e4m3 else 0.0

    def value_products(self, keys: Array) -> Array:
        """Return the relative error of summing e4m3 products in O. Runs of `keys` need not be aligned to 32."""
        visited = np.float32(E4M3_STEP * (1 + E4M3_UNIT_ROUNDOFF)) * (keys / np.float32(E4M3_DEPTH) + 2)
        steps: Array = (visited + np.float32(E4M3_CUT * MOST_IDLE_STEPS)).astype(np.float32)
        return steps if self.e4m3 else np.zeros_like(steps)


NUMERICS_USED = (
    "scores", "weights", "functions", "sums", "one_score", "divides_last", "scaled_q", "cubic_exp",
    "headroom", "factors", "constant_maximum",
)  # fmt: skip
"""The fields of `Numerics` that errors of attention depend on, besides those of its score terms."""
NUMERICS = tuple(field.name for field in dataclasses.fields(Numerics))


def numerics_used(problem: Problem) -> tuple[str, ...]:
    """Return the fields of `Numerics` that affect errors on this problem."""
    of_terms = [name for term in problem.terms for name in term.numerics]
    return tuple(name for name in NUMERICS if name in NUMERICS_USED or name in of_terms)
