"""How large a single rounding of a kernel is, from what its variant declares. In all of it, u = 2^-24.

What all operations have in common, and its sources, is in `harness.model.arithmetic.rounding`. Besides, from the CUDA
C++ Programming Guide: logf 1 ulp, __logf 2^-21.41 absolute near 1, tanhf 2 ulp. From the PTX manual:
tanh.approx.f32 2^-11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import (
    ARGUMENT,
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
"""P of the maximum at least, where it is rounded to e4m3."""
TANH = {"accurate": 4 * U, "fast": 2.0**-11}
"""Error of a hyperbolic tangent: tanhf's, or that of tanh.approx."""
TANH_ABSOLUTE = {"accurate": 0.0, "fast": 17 * U}
"""Absolute error of a hyperbolic tangent. It may be 1 - 2 / (E + 1), E = exp(2 x). E is off by delta E, which moves
that by 2 delta E / (E + 1)^2 = delta / (2 cosh^2 x), and delta <= 4u + |2 x| 6u (`EXP`, `ARGUMENT`): at most 4u. The
sum is rounded by u, the quotient, up to 2, by 5u (`division`), the difference by u: 2 (u + 5u) + u.
(E - 1) / (E + 1) is off by less."""
NORMAL_WEIGHT = E4M3_SMALLEST_NORMAL / E4M3_WEIGHT
"""The smallest weight that is a normal number of e4m3, beside the maximum's."""
MOST_IDLE_STEPS = 32
"""Products of 32 keys that a row sees none of, in tiles that it sees some of or other rows of its block do: all that
they do to its sum is to cut it off. Tiles have up to 256 keys, and blocks up to 256 rows."""


@dataclass(frozen=True)
class Roundings:
    """Largest relative errors, unless they are said to be absolute."""

    scores: float
    """Storing S."""
    scores_step: float
    """Storing the smallest scores; absolute."""
    query: float
    """All roundings of an element of Q that is scaled before the product, by factors that are normal numbers."""
    query_random: float
    """Roundings of each element of Q on its own, as expected over many elements."""
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
    """Whether tensor cores multiply and add up numbers of e4m3: `score_products` and `value_products`."""
    addition: float
    """One step of a sum, product included; for e4m3, what comes besides `score_products` and `value_products`."""
    random: bool
    """Whether the roundings of a sum are as likely up as down."""
    exp: float
    """An exponential, whatever its argument."""
    argument: float
    """An exponential, per unit of its argument, the subtraction of the maximum included."""
    frame: float
    """An exponential, per unit of the score and of the maximum that is subtracted from it."""
    rescale: float
    """A weight, each time that the maximum rises or, where O is divided as it goes, a tile ends."""
    division: float
    """The quotient O / l."""
    score_roundings: int
    """Roundings of a score besides one per element of q.k: the scale, its product, log2 e; the cap, if any."""
    tanh: float
    """A capped score: the hyperbolic tangent, its product with the cap, the cap itself, log2 e."""
    tanh_absolute: float
    """A capped score whose tangent is a difference of exponentials; absolute, per unit of the cap."""
    penalty: float
    """ALiBi's penalty."""
    penalized: float
    """A score after ALiBi's penalty is subtracted."""
    log: float
    """lse, per unit of lse."""
    log_of_sum: float
    """lse, per unit of log l."""
    log_absolute: float
    """lse; absolute."""

    @classmethod
    def of(cls, problem: Problem, numerics: Numerics) -> Roundings:
        """What one rounding amounts to where a variant that declares `numerics` solves `problem`."""
        sixteen = problem.dtype != "float32"
        u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
        stores_scores, stores_weights = (sixteen and x == "problem" for x in (numerics.scores, numerics.weights))
        fast = numerics.functions == "fast"
        nearest = numerics.sums == "nearest"
        scalings = numerics.scaled_q
        e4m3 = numerics.factors == "e4m3"
        weight, weight_step = (E4M3_UNIT_ROUNDOFF, E4M3_SMALLEST_STEP / E4M3_WEIGHT) if e4m3 else (u, step)
        return cls(
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
            # A product with the folded scale each for the key and for the maximum.
            frame=frame(numerics),
            # An exponential and a product. FlashAttention-1's weights: (exp l) / l_new, times O, four more.
            rescale=(5 if numerics.divides_last else 9) * U,
            # Under dropout, the rounding of what kept weights are multiplied by, and of their product with it.
            # Reciprocal and product; the product is part of the output's rounding where O is float32, all the same.
            division=division(numerics) + (2 * U if problem.dropout else 0.0),
            score_roundings=(3 if fast else 2) + (2 if problem.softcap is not None else 0),
            tanh=TANH[numerics.tanh] + 4 * U,
            tanh_absolute=TANH_ABSOLUTE[numerics.tanh],
            # The slope times log2 e, log2 e's own; the distance where it is beyond 2^24, and its product.
            penalty=4 * U,
            penalized=U,
            # Sum; where it is fast, also times ln 2, ln 2's own rounding, and the maximum's product with log2 e.
            log=4 * U if fast else U,
            log_of_sum=4 * U if fast else 2 * U,
            log_absolute=2.0**-21 if fast else 0.0,
        )

    def expected_sum(self, terms: Array) -> Array:
        """What `terms` roundings in a sum are expected to come to, relative to its partial sums."""
        steps: Array = np.minimum(LAMBDA * np.sqrt(terms), terms) if self.random else terms
        return self.addition * steps

    def score_products(self, elements: int) -> float:
        """What adding up products of e4m3 comes to in a score, relative to the sum of their magnitudes."""
        return E4M3_STEP * math.ceil(elements / E4M3_DEPTH) if self.e4m3 else 0.0

    def value_products(self, keys: Array) -> Array:
        """What adding up e4m3 products comes to in O. Runs of `keys` begin and end within 32; P may be rounded up."""
        visited = np.float32(E4M3_STEP * (1 + E4M3_UNIT_ROUNDOFF)) * (keys / np.float32(E4M3_DEPTH) + 2)
        steps: Array = (visited + np.float32(E4M3_CUT * MOST_IDLE_STEPS)).astype(np.float32)
        return steps if self.e4m3 else np.zeros_like(steps)


NUMERICS_USED = (
    "scores", "weights", "functions", "tanh", "sums", "one_score", "divides_last", "scaled_q", "factors",
)  # fmt: skip
"""The fields of `Numerics` that errors of attention depend on."""


def numerics_used(problem: Problem) -> tuple[str, ...]:
    """Those of a problem: a hyperbolic tangent is computed under a cap alone."""
    return tuple(name for name in NUMERICS_USED if name != "tanh" or problem.softcap is not None)
