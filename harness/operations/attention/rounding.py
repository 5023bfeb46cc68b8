"""How large a single rounding of a kernel is, from what its variant declares. In all of it, u = 2^-24.

What all operations have in common, and its sources, is in `harness.model.rounding`. Besides, from the CUDA C++
Programming Guide: logf 1 ulp, and __logf 2^-21.41 absolute near 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.floating_formats import SMALLEST_STEP, UNIT_ROUNDOFF, U
from harness.model.numerics import Numerics
from harness.model.rounding import ARGUMENT, EXP, LAMBDA, addition, division, frame
from harness.operations.attention.problem import Problem

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Roundings:
    """Largest relative errors, unless they are said to be absolute."""

    scores: float
    """Of storing S."""
    scores_step: float
    """The same, absolute, for the smallest scores."""
    query: float
    """Of an element of Q that is scaled before the product, by factors that are normal numbers: all its roundings."""
    query_random: float
    """The same, expected over many elements: of each rounding of its own."""
    query_common: float
    """The same, of the factors' roundings, which all elements share."""
    query_step: float
    """The same, absolute, of q tau, for the smallest ones."""
    weights: float
    """Of storing P."""
    weights_step: float
    """The same, absolute, for the smallest weights."""
    output: float
    """Of storing O."""
    output_step: float
    """The same, absolute, for the smallest outputs."""
    addition: float
    """Of one step of a sum, product included."""
    random: bool
    """Whether the roundings of a sum are as likely up as down."""
    exp: float
    """Of an exponential, whatever its argument."""
    argument: float
    """Of an exponential, per unit of its argument, its subtraction included."""
    frame: float
    """Of an exponential, per unit of the score and of the maximum that is subtracted from it."""
    rescale: float
    """Of a weight, each time that the maximum rises or, where O is divided as it goes, a tile ends."""
    division: float
    """Of O / l."""
    score_roundings: int
    """Of a score, besides one per element of q.k: the scale's own, its product, log2 e's."""
    log: float
    """Of lse, per unit of lse."""
    log_of_sum: float
    """Of lse, per unit of log l."""
    log_absolute: float
    """Of lse."""

    @classmethod
    def of(cls, problem: Problem, numerics: Numerics) -> Roundings:
        """What one rounding amounts to where a variant that declares `numerics` solves `problem`."""
        sixteen = problem.dtype != "float32"
        u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
        stores_scores, stores_weights = (sixteen and x == "problem" for x in (numerics.scores, numerics.weights))
        fast = numerics.functions == "fast"
        nearest = numerics.sums == "nearest"
        scalings = numerics.scaled_q
        return cls(
            scores=u if stores_scores else 0.0,
            scores_step=step if stores_scores else 0.0,
            query=(1 + u) ** scalings - 1,
            query_random=LAMBDA * math.sqrt(scalings) * u,
            query_common=max(scalings - 1, 0) * u,
            query_step=scalings * step,
            weights=u if stores_weights else 0.0,
            weights_step=step if stores_weights else 0.0,
            output=u,
            output_step=step,
            addition=addition(numerics),
            random=nearest,
            exp=EXP,
            argument=ARGUMENT[numerics.functions],
            # A product with the folded scale each for the key and for the maximum.
            frame=frame(numerics),
            # An exponential and a product. FlashAttention-1's weights: (exp l) / l_new, times O, four more.
            rescale=(5 if numerics.divides_last else 9) * U,
            # Reciprocal and product; the product is part of the output's rounding where O is float32, all the same.
            division=division(numerics),
            score_roundings=3 if fast else 2,
            # Sum; where it is fast, also times ln 2, ln 2's own rounding, and the maximum's product with log2 e.
            log=4 * U if fast else U,
            log_of_sum=4 * U if fast else 2 * U,
            log_absolute=2.0**-21 if fast else 0.0,
        )

    def expected_sum(self, terms: Array) -> Array:
        """What `terms` roundings in a sum are expected to come to, relative to its partial sums."""
        steps: Array = np.minimum(LAMBDA * np.sqrt(terms), terms) if self.random else terms
        return self.addition * steps
