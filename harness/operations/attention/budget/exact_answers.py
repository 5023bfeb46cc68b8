"""Elements whose result is exact in every correct kernel, and elements in which any result is accepted."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import LARGEST, SMALLEST_STEP, UNIT_ROUNDOFF
from harness.model.array_types import Float64Array, Mask
from harness.model.numerics import Numerics
from harness.operations.attention.oracle import Block
from harness.operations.attention.problem import Problem
from harness.operations.attention.products import finite

ABSORBED = 2.0**-26
"""Relative size of a summand below which adding it to a float32, rounded to nearest, has no effect."""
LARGEST_SUM = 2.0**24
"""Largest sum of whole numbers that is exact in float32 in any order."""
LOG2_E = 1.4427
MOST_KEYS = 2**14
"""Maximum n for which 1 / n is a normal float16."""


def exact_elements(
    problem: Problem, block: Block, p: npt.NDArray[np.float32], score_error: npt.NDArray[np.float32], numerics: Numerics
) -> Mask:
    """Return where a kernel with these `numerics` computes the exact answer, rounded to nearest: (b, h, rows, d).

    This requires an exponential that is exactly 1 at 0, such as expf and __expf of S - m, and additions that round to
    nearest. It applies to two kinds of rows:

    needle      one key has nearly all weight: adding all the others has no effect in float32, in the sum over V and in
                the denominator, in any order. Includes rows that see only one key.
    even        every score is 0, and the number of seen keys is a power of two: the weights 1 or 1 / n and l = n are
                exact in any order. So are sums of whole numbers, unless O is divided by an incomplete denominator. A
                sink of 0 counts as a key.

    With dropout, the factor on kept weights has to be a power of two. If the needle is dropped, only elements in which
    the rest is 0 are exact.

    `p` are the oracle's weights, and `score_error` bounds the error of computed scores; both (b, h, rows, keys).
    """
    exact = np.zeros((*block.scores.shape[:-1], problem.v_width), np.bool_)
    if numerics.functions == "fast" or numerics.sums != "nearest" or not math.log2(block.kept_factor).is_integer():
        return exact
    _mark_needles(exact, block, p, score_error)
    if numerics.divides_last:
        _mark_even_weights(exact, problem, block)
    return exact


def _mark_needles(exact: Mask, block: Block, p: npt.NDArray[np.float32], score_error: npt.NDArray[np.float32]) -> None:
    has_needle = p.max(axis=-1) > 1 - 2.0**-20
    # One product for all heads is much faster than gathering the values of each row, so this covers every row that has
    # a needle in any head.
    rows = np.flatnonzero(has_needle.any(axis=(0, 1)))
    if not len(rows):
        return
    others = p[:, :, rows].astype(np.float64)
    needle = others.argmax(axis=-1)[..., None]
    # A weight that is negligible in the denominator may affect O if the needle's value is 0 or tiny.
    np.maximum(others, SMALLEST_STEP["float32"], out=others, where=np.isfinite(block.scores[:, :, rows]))
    np.put_along_axis(others, needle, 0.0, axis=-1)
    # Two scores have errors; 6u of an argument of at most 104 in magnitude is small compared to the factor 2.
    others *= 2 * np.exp(2 * score_error[:, :, rows].max(axis=-1, keepdims=True))
    magnitude = block.kept_factor * np.abs(block.v)
    carried = np.take_along_axis(magnitude, needle, axis=-2)
    largest = np.where(np.isfinite(magnitude), magnitude, 0.0)
    beside_needle = others.sum(axis=-1, keepdims=True)
    if block.kept is not None:
        kept = block.kept[:, :, rows]
        carried = carried * np.take_along_axis(kept, needle, axis=-1)
        others = others * kept
    seen = others @ largest + beside_needle * carried
    # CuPy compiles with -ftz=true, so subnormal results may become 0.
    absorbed = (seen <= ABSORBED * carried) & (
        (carried == 0) | (carried >= block.kept_factor * SMALLEST_STEP["float32"])
    )
    exact[:, :, rows] = absorbed & has_needle[:, :, rows, None]


def _mark_even_weights(exact: Mask, problem: Problem, block: Block) -> None:
    n = block.keys_seen
    even = (n > 0) & (n & (n - 1) == 0) & (n <= MOST_KEYS)
    if not even.any() or (problem.tau != 0 and block.q.any(axis=-1).all()):
        return
    # With q = 0 or tau = 0 every product is exactly 0, not the rounding of a small number.
    zero = np.all((block.scores == 0) | ~block.visible, axis=-1)
    if problem.tau != 0:
        zero &= ~block.q.any(axis=-1)
    whole = np.all(block.v == np.rint(block.v), axis=-2) & (np.abs(block.v).sum(axis=-2) <= LARGEST_SUM)
    exact |= (zero & even)[..., None] & whole[:, :, None, :]


def unconstrained_elements(
    problem: Problem, block: Block, largest_O: Float64Array, numerics: Numerics
) -> tuple[Mask, Mask]:
    """Return masks for O and lse: where a correct kernel may overflow, so that any result is accepted.

    These may overflow: a score, in float32 or in the dtype in which it is stored; a scaled Q; a weight that dropout
    increases; the sum over V before it is divided, with weights of up to 2^headroom; O in its dtype. Moreover, some
    kernels treat a key whose score is -inf as unseen, which matters if all scores of a row are -inf without a bias of
    -inf, or the key's value is not finite; and some treat a key whose bias is -inf as unseen, which matters if q.k is
    NaN or infinite. `largest_O` is the answer's magnitude plus its budget, (b, h, rows, d).
    """
    largest = LARGEST["float32"] / 4  # log2 e may be folded in
    tau, n = max(abs(problem.tau), 1.0), block.keys_seen
    q, k, v = (_largest_finite(x) for x in (block.q, block.k, block.v))
    scores = np.full(block.scores.shape[:-1], False)
    if (tau * (q * k).sum(axis=-1)).max() > largest:
        scores |= np.any((tau * (np.abs(block.q) @ np.abs(finite(block.k)).mT) > largest) & block.visible, axis=-1)
    if problem.dtype == "float16" and numerics.scores == "problem":
        magnitude = block.rule.largest_stored(block.scores)
        folded = LOG2_E if numerics.scaled_q else 1.0
        over = folded * magnitude * (1 + 2 * UNIT_ROUNDOFF["float16"]) > LARGEST["float16"]
        scores |= np.any(over & np.isfinite(magnitude), axis=-1)
    if problem.dtype == "float16" and numerics.scaled_q:
        scores |= LOG2_E * tau * np.abs(block.q).max(axis=-1) * 1.01 > LARGEST["float16"]
    scores |= (n > 0) & (block.row_maxima == -np.inf) & ~block.blind
    if not block.rule.keeps_products:
        scores |= np.isfinite(block.row_maxima) & (np.abs(block.row_maxima) > largest)
    if (hides := block.rule.hides(block.scores.shape[-1])) is not None:
        # Some kernels compute NaN - inf, and others do not compute a score that a term hides.
        scores |= np.any(hides & np.isnan(block.scores), axis=-1)
    finite_v = np.isfinite(block.v)
    # A weight of 0 times NaN: some kernels skip keys with weight 0, and some skip dropped weights.
    skipped = np.zeros((), np.bool_)
    if not finite_v.all():
        no_weight = ~block.weighted & (block.visible if block.hidden is None else block.visible | block.hidden)
        skipped = no_weight.astype(np.float64) @ (~finite_v).astype(np.float64) > 0
    if block.kept is not None:
        # If all weights of a row are dropped, including NaN ones, some kernels return 0.
        of_keys = block.kept[..., : problem.kv_len] & block.visible[..., : problem.kv_len]
        skipped = skipped | (~of_keys.any(axis=-1) & ~(block.row_maxima < np.inf))[..., None]
    largest_weight = 1.0 if numerics.constant_maximum is None else math.exp(numerics.constant_maximum[2])
    weight = block.kept_factor * 2.0**numerics.headroom * largest_weight  # the largest one
    sums = (weight * np.maximum(n, 1)[..., None] * v > largest) | (largest_O > LARGEST[problem.dtype])
    if problem.dtype == "float16" and numerics.weights == "problem" and block.kept_factor > LARGEST["float16"]:
        skipped = np.ones((), np.bool_)
    return scores[..., None] | sums | skipped, scores


def _largest_finite(x: Float64Array) -> Float64Array:
    """Return the largest finite magnitude of each column."""
    largest: Float64Array = np.maximum(x.max(axis=-2, keepdims=True), -x.min(axis=-2, keepdims=True))
    if np.isfinite(largest).all():  # neither a NaN nor an infinity can hide from both
        return largest
    largest = np.abs(np.where(np.isfinite(x), x, 0.0)).max(axis=-2, keepdims=True)
    return largest
