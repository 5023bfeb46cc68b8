"""How far off may a correct kernel be on these very inputs? A budget for every output element, derived here.

Notation: s_j = tau q.k_j, m = max s, p = softmax(s), o = sum p_j v_j, all in exact arithmetic from the stored inputs;
u = 2^-24; n = keys that the row sees; u_16 = the unit roundoff of the problem's dtype where that has 16 bits, else 0.

A kernel forms weights for the sum over V and weights for the denominator. Whatever it does, in whatever order, the
weight of key j is w_j exp(alpha_j) in the one and w_j exp(beta_j) in the other, with |alpha_j|, |beta_j| <= a_j:

    a_j = sigma_j + stored_j                        the score: its dot product, and its rounding where S is stored
        + C_ARGUMENT u (m - s_j + sigma_j + stored_j + max(sigma + stored))     exp: what grows with its argument
        + C_FRAME u (|s_j| + |m|)                   log2 e folded into the scale: the maximum is rounded on its own
        + u (C_RESCALE n + 2 n + C_CONSTANT)        rescaling at every key, two sums over n keys, the rest
        + u_16                                      rounding P where it is stored in 16 bits

    sigma_j = (d + 4) u |tau| sum_i |q_i k_ji|      d products and d - 1 sums, scale, its own rounding, log2 e folded
    stored_j = u_16 |s_j|

The arguments of all exponentials that a key's weight meets (its own, then one per rise of the running maximum) add up
to m - s_j, whatever the tiles: that is why the second line holds for any loop order. The running maximum that a weight
is taken relative to lies between s_j and m, hence the third. Factors (1 + delta)^k are written as exp(k u); `SLACK`
covers the difference. Then, since the perturbations of numerator and denominator need not be the same (P rounded for
the one and not for the other),

    o^ - o = (sum p_j (exp(alpha_j) - 1) v_j - o sum p_j (exp(beta_j) - 1)) / sum p_j exp(beta_j)
    B = (sum p_j expm1(a_j) |v_j| + |o| sum p_j expm1(a_j)) / sum p_j exp(-a_j)

which is one matrix product more than the answer itself. It is bounded by (1 + rest) max |v_j| + |o|: however unsure
the scores, weights that add up to 1 give nothing larger than the largest value (here, and only here, both sums are
taken to use the same computed scores). At last come underflow (absolute) and the rounding of the output,
u_out (|o| + B).

lse = m + log(sum): shifting by any computed maximum is exact, so the same a_j bound the sum, and rounding follows.

This is a worst case that holds for every loop order, every tile size down to one key, and for S and P stored in the
problem's dtype. It is therefore loose for a kernel that keeps float32 throughout a 16-bit problem. Higham, Accuracy
and Stability of Numerical Algorithms, 2nd ed., chapter 3, has the rounding lemmas; the CUDA C++ Programming Guide,
section on mathematical functions, has the errors of __expf (2 + floor(|1.173 x|) ulp) and of __logf (2^-21.41).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.oracle import Reference, RowBlock, row_blocks
from harness.problem import Problem
from harness.variant import Numerics

Float64Array = npt.NDArray[np.float64]

U = 2.0**-24
"""Unit roundoff of float32, in which all kernels accumulate."""
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST_STEP = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
"""Largest absolute error of storing a value too small to be normal. float32 and bfloat16 may be flushed to zero."""

C_ARGUMENT = 6.0
"""In u per unit of exp's argument: subtraction 1, times log2 e 1, log2 e's own rounding 1, __expf 1.173 ulp = 2.4 u."""
C_FRAME = 2.0
"""In u of |s_j| and of |m|: a product with the folded scale each, once for the key and once for the maximum."""
C_RESCALE = 5.0
"""In u per rescaling: an exponential of 2 ulp = 4 u, and a product."""
C_CONSTANT = 12.0
"""In u, once: the key's own exponential 4 u, P V's product 1, approximate reciprocal 2 and division 2, spare 3."""
C_LOG = 4.0
"""In u of |m|, log n and |lse|: sum, times ln 2, ln 2's own rounding, logarithm of 1 ulp."""
LOG_ABSOLUTE = 2.0**-21
"""__logf is off by up to 2^-21.41 where its result is near 0."""
SLACK = 1.01
"""Covers (1 + u)^k <= exp(k u (1 + u)), the same for d + 4 up to 10^5, and the rounding of the budget itself."""
LARGEST_ARGUMENT = 104.0
"""exp(-104) is below the smallest float32: a key further from the maximum weighs nothing."""


ANY_KERNEL = Numerics()
"""Nothing is declared."""


@dataclass(frozen=True)
class Budget:
    """The largest errors that a correct kernel may make, element by element, in float64."""

    O: Float64Array
    """Shape (batch, heads, q_len, head_dim); 0 in fully masked rows, NaN where the answer is not finite."""
    lse: Float64Array
    """Shape (batch, heads, q_len)."""
    expected_O: Float64Array
    """What a correct kernel's error is expected to stay below, as if roundings were random; at most `O`."""
    expected_lse: Float64Array
    """The same for lse."""


def error_budget(
    problem: Problem, inputs: Mapping[str, np.ndarray], reference: Reference, numerics: Numerics = ANY_KERNEL
) -> Budget:
    """The budget for these very inputs; `reference` is the oracle's answer to them, `numerics` what is declared."""
    O, lse = np.empty(problem.q_shape), np.empty(problem.lse_shape)
    budget = Budget(O, lse, O, lse)
    for block in row_blocks(problem, inputs):
        where = block.where
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            budget.O[where], budget.lse[where] = _block_budget(problem, block, reference.O[where], reference.lse[where])
    return budget


def _block_budget(
    problem: Problem, block: RowBlock, o: Float64Array, lse: Float64Array
) -> tuple[Float64Array, Float64Array]:
    u_16 = 0.0 if problem.dtype == "float32" else UNIT_ROUNDOFF[problem.dtype]
    u_out, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
    n = block.visible.sum(axis=1)
    m = block.largest_scores()
    # Keys that a row does not see have p = 0 here; their scores must not decide any maximum below.
    s = np.where(block.visible, block.scores, m[:, None])
    p = np.where(block.visible, np.exp(block.scores - lse[:, None]), 0.0)
    v = np.where(np.isfinite(block.v), np.abs(block.v), 0.0)
    largest_v = v.max(axis=0)

    score_error = (problem.head_dim + 4) * U * abs(problem.tau) * (np.abs(block.q) @ np.abs(block.k).T)
    score_error += u_16 * np.abs(s) + (step if u_16 else 0.0)
    score_error = np.where(block.visible, score_error, 0.0)
    argument = (m[:, None] - s) + score_error + score_error.max(axis=1, keepdims=True)
    from_sums = U * ((C_RESCALE + 2) * n + C_CONSTANT) + u_16
    from_frame = C_FRAME * U * (np.abs(s) + np.abs(m[:, None]))
    a = SLACK * (score_error + C_ARGUMENT * U * argument + from_frame + from_sums[:, None])

    weight_error = p * np.expm1(a)
    lost_weight = np.sum(p * np.exp(-a), axis=1)
    too_much = np.sum(weight_error, axis=1)
    B = (weight_error @ v + np.abs(o) * too_much[:, None]) / lost_weight[:, None]
    hull = np.exp(SLACK * (from_sums + C_ARGUMENT * U * LARGEST_ARGUMENT))[:, None] * largest_v + np.abs(o)
    B = np.fmin(B, hull)
    # Weights are at most 1 and one of them is 1, so the denominator is at least 1 and small weights cost this much.
    smallest_weight = 2.0**-126 + (step if u_16 else 0.0)
    underflow = smallest_weight * np.minimum(v.sum(axis=0), n[:, None] * largest_v) + 2 * (n[:, None] + 2) * 2.0**-126
    B = B + underflow
    B += SLACK * u_out * (np.abs(o) + B) + step

    # Whatever p is, the sum changes by no more than its worst term: that bounds log1p where expm1 overflowed.
    log_error = np.fmin(np.fmax(np.log1p(too_much), -np.log(lost_weight)), a.max(axis=1))
    log_error += C_LOG * U * (np.abs(m) + np.log(np.maximum(n, 1)) + np.abs(lse)) + LOG_ABSOLUTE

    empty = block.sees_nothing
    B[empty] = 0.0
    B[~np.isfinite(o)] = np.nan
    log_error[empty] = 0.0
    log_error[~np.isfinite(lse) & ~empty] = np.nan
    return B, log_error
