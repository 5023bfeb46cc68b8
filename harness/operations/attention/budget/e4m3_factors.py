"""What a kernel whose factors are e4m3 multiplies, and what is derived for it besides `error_budget`.

**Q, K and V.** `Numerics.factors` says how they are rounded. Scales are powers of two, so nothing but the rounding to
e4m3 itself rounds, and two kernels that keep to the rule have the same factors to the bit. Hence their errors need no
bound, they are known: with o' the exact answer from the rounded factors,

    |o^ - o| <= |o' - o| + B'

where B' is the budget of `error_budget` for a problem with these very factors. Bounds would be 2^-4 of each element, in
scores sums of that, and exponentials of those; such a budget lets wrong kernels pass.

**P** is rounded as 2^6 exp(S - m) or more, and never beyond 448: by 2^-4 of itself, or by 2^-10 / 2^6 of the maximum's
weight where it is no normal number of e4m3. These stand in place of 16 bits' in `error_budget`. Weights that are
relative to an earlier maximum are rounded with a smaller step still.

Exponentials may be relative to an earlier maximum, too, which rises behind them by m' - m <= 122 powers of two. Then
the arguments that a weight meets do not add up to its distance from the maximum: its own is positive, and the rise
takes as much off. What the two round besides is 2 x 122 ln 2 u = 170 u at most. `error_budget` has a rise and an
addition at every key, 6u; who tests all exponentials of a tile together has one rise for its 32 keys or more, and adds
up a quarter of them in a row: more than 170 u are left, not to speak of 2^-4 for P.

**Sums of products.** Tensor cores add 32 products to a sum c at a time. What they add they align to the largest
exponent e among the addends and cut off 2^(e - 13) behind it, 33 times, and then the sum, so

    |error of a step| <= 34 x 2^-13 max(|c|, products) <= 34 x 2^-13 sum |products so far|

for the exponent of a product is that of its factors together, and its significand at least 1, where both are normal
numbers. A factor that is too small for that has the exponent of the smallest normal number: it counts as that. In
scores that is ceil(d / 32) times sum |q_i k_ji|; in O, n / 32 + 2 times sum p_j |v_j| for n keys in a row, and once
more 2^-13 for each step whose keys the row does not see (`rounding.MOST_IDLE_STEPS`). It depends on no order of tiles;
larger sums are only rescaled by factors of at most 1.

That is for keys in any order, and beyond what sums do: with n keys it is n / 7,700 of sum p_j |v_j|, more than O itself
from some thousands of keys on. **Expected** is less. The unit that is cut off is 2^-13 of the largest addend, and of
sums of keys in random order the squares are about o^2 + sum p_j^2 v_j^2 (see `error_budget`), so with

    M = |o| + 2 sqrt(sum p_j^2 v_j^2)               c = 2^-13 M

the sum loses 2 c in each step, in one direction. A product loses at most c and at most itself, towards 0: where values
have either sign their losses cancel but for what is random (Hoeffding, with a range of w_j = min(p_j, c)):

    |error| <= (2 steps + idle steps) c + |sum w_j sign(v_j)| + lambda / 2 sqrt(sum w_j^2)

with v_j in units of the largest magnitude of its column.
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
from harness.operations.attention.budget.rounding_sizes import MOST_IDLE_STEPS
from harness.operations.attention.oracle import Block
from harness.operations.attention.problem import Problem

Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RoundedFactors:
    """A block with Q, K and V rounded, and the smallest normal numbers of e4m3 in each head's scale, (b, h, 1, 1)."""

    block: Block
    """Scores that are not finite are those of the problem's own Q and K: a factor that is rounded to 0 has a sign
    before an infinity."""
    normal_q: Float64Array
    normal_k: Float64Array
    normal_v: Float64Array


def rounded_factors(problem: Problem, block: Block, inputs: Mapping[str, np.ndarray]) -> RoundedFactors:
    """`inputs` are the problem's: the scale of Q is that of all rows of a head."""
    scales = [_scales(x) for x in (inputs["Q"][block.whole_heads], block.k, block.v)]
    q, k, v = (_rounded(x, scale) for x, scale in zip((block.q, block.k, block.v), scales))
    with np.errstate(invalid="ignore", over="ignore"):
        scores = block.rule.scores(problem.tau * (_finite(q) @ _finite(k).mT))
        scores = np.where(np.isfinite(block.scores), scores, block.scores)
    return RoundedFactors(
        dataclasses.replace(block, q=q, k=k, v=v, scores=scores), *(scale * E4M3_SMALLEST_NORMAL for scale in scales)
    )


def expected_cut(p: Array, v: Array, o: Array, n: Array) -> Array:
    """What is expected to be cut off O's sums, (b, h, rows, d), in units of V.

    Weights `p` are (b, h, rows, keys), values `v` (b, h, keys, d) and |o| as the result, both in units of V's largest;
    `n`, (b or 1, h or 1, rows, 1), counts the keys that rows see.
    """
    largest = np.float32(1 + E4M3_UNIT_ROUNDOFF) * (o + 2 * np.sqrt(np.square(p) @ np.square(v)))
    lost = np.minimum(p, np.float32(E4M3_CUT) * largest.max(axis=-1, keepdims=True))
    products = np.abs(lost @ np.sign(v)) + np.float32(LAMBDA / 2) * np.sqrt(np.square(lost) @ np.square(np.sign(v)))
    cuts = 2 * (n / np.float32(E4M3_DEPTH) + 2) + MOST_IDLE_STEPS
    found: Array = np.float32(E4M3_CUT) * cuts * largest + products
    return found


def _scales(heads: np.ndarray) -> Float64Array:
    """(b, h, 1, 1): the least power of two that brings the largest finite magnitude to at most 448."""
    magnitude = np.abs(heads)
    largest = np.where(np.isfinite(magnitude), magnitude, magnitude.dtype.type(0)).max(axis=(-2, -1), keepdims=True)
    fraction, exponent = np.frexp(largest.astype(np.float64) / E4M3_LARGEST)
    scales: Float64Array = np.ldexp(1.0, exponent - (fraction == 0.5))
    return scales


def _rounded(x: Float64Array, scale: Float64Array) -> Float64Array:
    # Float32 holds what is divided, but for what is far too small for e4m3.
    scaled = (x / scale).astype(np.float32)
    rounded = scaled.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale
    known: Float64Array = np.where(np.isfinite(x), rounded, x)
    return known


def _finite(x: Float64Array) -> Float64Array:
    return np.where(np.isfinite(x), x, 0.0)
