"""Rounds factors to e4m3, and derives the error bounds that apply to such kernels in addition to `error_budget`.

**Q, K and V.** `Numerics.factors` defines how they are rounded. Scales are powers of two, so rounding to e4m3 is the
only rounding, and all kernels that follow the rule have bitwise equal factors. So their errors are known and need no
bound: with o' the exact answer from the rounded factors,

    |o^ - o| <= |o' - o| + B'

where B' is the budget of `error_budget` for a problem with these factors. A bound of 2^-4 per element, summed in scores
and then exponentiated, would let wrong kernels pass.

**P** is rounded as 2^6 exp(S - m) or more, and never exceeds 448. Its error is 2^-4 of itself, or 2^-10 / 2^6 of the
maximum's weight if it is subnormal in e4m3. These replace the errors of 16 bits in `error_budget`. Weights relative to
an earlier maximum are rounded with a smaller step.

Exponentials may also be relative to an earlier maximum m, with a later maximum m' up to 122 powers of two larger. Then
the arguments of a weight's exponentials do not add up to its distance from the maximum: its own is positive, and the
rise subtracts as much. This adds roundings of at most 2 x 122 ln 2 u = 170 u. `error_budget` allows a rise and an
addition at every key, 6u. A kernel that tests all exponentials of a tile together has one rise for its 32 keys or more,
and adds a quarter of them sequentially, which leaves more than 170 u, in addition to 2^-4 for P.

**Sums of products.** Tensor cores add 32 products to a sum c at a time. They align all addends to the largest exponent
e among them and truncate at 2^(e - 13), 33 times, and then truncate the sum, so

    |error of a step| <= 34 x 2^-13 max(|c|, products) <= 34 x 2^-13 sum |products so far|

because the exponent of a product is the sum of its factors' exponents, and its significand is at least 1, if both are
normal numbers. A subnormal factor has the exponent of the smallest normal number, so it counts as that number. For
scores this is ceil(d / 32) times sum |q_i k_ji|; for O, n / 32 + 2 times sum p_j |v_j| for n consecutive keys, plus
2^-13 for each step whose keys the row does not see (`rounding_sizes.MOST_IDLE_STEPS`). It does not depend on the order
of tiles, because larger sums are only rescaled by factors of at most 1.

This holds for keys in any order, but actual sums have smaller errors: with n keys it is n / 7,700 of sum p_j |v_j|,
which exceeds O itself from some thousands of keys on. **Expected** errors are smaller. The truncation unit is 2^-13 of
the largest addend. Squares of sums of keys in random order are about o^2 + sum p_j^2 v_j^2 (`error_budget`), so with

    M = |o| + 2 sqrt(sum p_j^2 v_j^2)               c = 2^-13 M

the sum loses 2 c in each step, in one direction. A product loses at most c and at most itself, towards 0. For values of
both signs the losses cancel except for a random part (Hoeffding, with a range of w_j = min(p_j, c)):

    |error| <= (2 steps + idle steps) c + |sum w_j sign(v_j)| + lambda / 2 sqrt(sum w_j^2)

where v_j is relative to the largest magnitude of its column.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import (
    E4M3_CUT,
    E4M3_DEPTH,
    E4M3_LARGEST,
    E4M3_SMALLEST_NORMAL,
    E4M3_UNIT_ROUNDOFF,
    LAMBDA,
)
from harness.model.array_types import Float64Array
from harness.operations.attention.budget.rounding_sizes import MOST_IDLE_STEPS
from harness.operations.attention.oracle import Block
from harness.operations.attention.problem import Problem

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class RoundedFactors:
    """A block with rounded Q, K, V, and the smallest normal numbers of e4m3 times each head's scale, (b, h, 1, 1)."""

    block: Block
    """Nonfinite scores are computed from the unrounded Q and K, because a factor rounded to 0 would change them."""
    normal_q: Float64Array
    normal_k: Float64Array
    normal_v: Float64Array


def rounded_factors(problem: Problem, block: Block, inputs: Mapping[str, np.ndarray]) -> RoundedFactors:
    """Round a block's factors. `inputs` are the problem's, because the scale of Q depends on all rows of a head."""
    scales = [_scales(x) for x in (inputs["Q"][block.whole_heads], block.k, block.v)]
    q, k, v = (_rounded(x, scale) for x, scale in zip((block.q, block.k, block.v), scales))
    with np.errstate(invalid="ignore", over="ignore"):
        scores = block.rule.scores(problem.tau * (_finite(q) @ _finite(k).mT))
        scores = np.where(np.isfinite(block.scores), scores, block.scores)
    return RoundedFactors(
        dataclasses.replace(block, q=q, k=k, v=v, scores=scores), *(scale * E4M3_SMALLEST_NORMAL for scale in scales)
    )


def expected_cut(p: Array, v: Array, o: Array, n: Array) -> Array:
    """Return the expected truncation error of O's sums, (b, h, rows, d), in units of V.

    Weights `p` are (b, h, rows, keys), values `v` (b, h, keys, d) and |o| as the result, both in units of V's largest;
    `n`, (b or 1, h or 1, rows, 1), counts the keys that rows see.
    """
    largest = np.float32(1 + E4M3_UNIT_ROUNDOFF) * (o + 2 * np.sqrt(np.square(p) @ np.square(v)))
    ranges = np.minimum(p, np.float32(E4M3_CUT) * largest.max(axis=-1, keepdims=True))
    products = np.abs(ranges @ np.sign(v)) + np.float32(LAMBDA / 2) * np.sqrt(np.square(ranges) @ np.square(np.sign(v)))
    cuts = 2 * (n / np.float32(E4M3_DEPTH) + 2) + MOST_IDLE_STEPS
    found: Array = np.float32(E4M3_CUT) * cuts * largest + products
    return found


def _scales(heads: np.ndarray) -> Float64Array:
    """Return the least powers of two that reduce heads' largest finite magnitudes to at most 448, (b, h, 1, 1)."""
    magnitude = np.abs(heads)
    largest = np.where(np.isfinite(magnitude), magnitude, magnitude.dtype.type(0)).max(axis=(-2, -1), keepdims=True)
    fraction, exponent = np.frexp(largest.astype(np.float64) / E4M3_LARGEST)
    scales: Float64Array = np.ldexp(1.0, exponent - (fraction == 0.5))
    return scales


def _rounded(x: Float64Array, scale: Float64Array) -> Float64Array:
    # Quotients are exact in float32, except those far below the range of e4m3.
    scaled = (x / scale).astype(np.float32)
    rounded = scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    return np.where(np.isfinite(x), rounded, x)


def _finite(x: Float64Array) -> Float64Array:
    return np.where(np.isfinite(x), x, 0.0)
