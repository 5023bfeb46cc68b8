"""Where a kernel has no choice, and where nothing can be asked of it: the two ends of the budget."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import LARGEST, SMALLEST_STEP, UNIT_ROUNDOFF
from harness.model.numerics import Numerics
from harness.operations.attention.oracle import Block
from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

ABSORBED = 2.0**-26
"""A float32 does not change when this much of it is added or taken away, rounded to nearest."""
LARGEST_SUM = 2.0**24
"""Whole numbers up to here are exact in float32, and so are sums of them that stay below."""
LOG2_E = 1.4427
MOST_KEYS = 2**14
"""1 / n is a normal float16 up to here."""


def nothing_but_the_answer(
    problem: Problem, block: Block, p: npt.NDArray[np.float32], score_error: npt.NDArray[np.float32], numerics: Numerics
) -> Mask:
    """(b, h, rows, d): where a kernel that declares `numerics` gives the answer, rounded to nearest, bit for bit.

    That takes an exponential that is 1 at 0, as expf and __expf of S - m are, and additions that round to nearest. Two
    kinds of rows:

    needle      one key has all the weight that float32 can see: the others, added up, are absorbed by it in the sum
                over V and in the denominator, in any order. Also rows that see one key only.
    even        every score is 0, and a power of two many keys are seen: weights 1, l = n, weights 1 / n in whatever
                order, each exact; so are sums of whole numbers, unless O is divided before the denominator is complete.
                A sink of 0 is one of these keys.

    Where weights drop out, those that do not have to be multiplied by a power of two, which changes no bits. A needle
    that drops out leaves nothing that is exact, but where all that is left is 0.

    `p` are the oracle's weights, `score_error` how far a computed score may be off; both (b, h, rows, keys).
    """
    exact = np.zeros((*block.scores.shape[:-1], problem.head_dim), np.bool_)
    if numerics.functions == "fast" or numerics.sums != "nearest" or not math.log2(block.kept_factor).is_integer():
        return exact
    _mark_needles(exact, block, p, score_error)
    if numerics.divides_last:
        _mark_even_weights(exact, problem, block)
    return exact


def _mark_needles(exact: Mask, block: Block, p: npt.NDArray[np.float32], score_error: npt.NDArray[np.float32]) -> None:
    has_needle = p.max(axis=-1) > 1 - 2.0**-20
    # One product for all heads is much quicker than the values gathered for each row: so rows are looked at that have
    # a needle in some head.
    rows = np.flatnonzero(has_needle.any(axis=(0, 1)))
    if not len(rows):
        return
    others = p[:, :, rows].astype(np.float64)
    needle = others.argmax(axis=-1)[..., None]
    # A weight that float32 does not see may still be seen in O, where the needle's value is 0 or hardly more.
    np.maximum(others, SMALLEST_STEP["float32"], out=others, where=np.isfinite(block.scores[:, :, rows]))
    np.put_along_axis(others, needle, 0.0, axis=-1)
    # Two scores may be off, and 6u of an argument up to -104, where weights end, is little beside the factor 2.
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
    # CuPy compiles with -ftz=true: what is not normal may come out as 0.
    absorbed = (seen <= ABSORBED * carried) & (
        (carried == 0) | (carried >= block.kept_factor * SMALLEST_STEP["float32"])
    )
    exact[:, :, rows] = absorbed & has_needle[:, :, rows, None]


def _mark_even_weights(exact: Mask, problem: Problem, block: Block) -> None:
    n = block.keys_seen
    even = (n > 0) & (n & (n - 1) == 0) & (n <= MOST_KEYS)
    if not even.any() or (problem.tau != 0 and block.q.any(axis=-1).all()):
        return
    # With q = 0 or tau = 0 every product is 0, and not a rounding of something small.
    zero = np.all((block.scores == 0) | ~block.visible, axis=-1)
    if problem.tau != 0:
        zero &= ~block.q.any(axis=-1)
    whole = np.all(block.v == np.rint(block.v), axis=-2) & (np.abs(block.v).sum(axis=-2) <= LARGEST_SUM)
    exact |= (zero & even)[..., None] & whole[:, :, None, :]


def nothing_promised(problem: Problem, block: Block, largest_O: Float64Array, numerics: Numerics) -> tuple[Mask, Mask]:
    """Where a right kernel may overflow, and what comes out may be anything: masks for O and for lse.

    A score may leave the dtype that it is stored in, or float32 on the way; a scaled Q may leave its dtype, and so may
    a weight that dropout has made larger. A sum over V that is not divided yet may leave float32, and O its dtype. And
    where a score is -inf, some kernels take the key for one that is not seen: all keys of a row may be such, or the
    value of one of them not finite. `largest_O` is (b, h, rows, d): the answer's magnitude with its budget.
    """
    largest = LARGEST["float32"] / 4  # log2 e is folded in somewhere
    tau, n = max(abs(problem.tau), 1.0), block.keys_seen
    q, k, v = (_largest_finite(x) for x in (block.q, block.k, block.v))
    scores = np.full(block.scores.shape[:-1], False)
    if (tau * (q * k).sum(axis=-1)).max() > largest:
        finite = np.where(np.isfinite(block.k), block.k, 0.0)
        scores |= np.any((tau * (np.abs(block.q) @ np.abs(finite).mT) > largest) & block.visible, axis=-1)
    if problem.dtype == "float16" and numerics.scores == "problem":
        magnitude = np.abs(block.scores)
        folded = LOG2_E if numerics.scaled_q else 1.0
        over = folded * magnitude * (1 + 2 * UNIT_ROUNDOFF["float16"]) > LARGEST["float16"]
        scores |= np.any(over & np.isfinite(magnitude), axis=-1)
    if problem.dtype == "float16" and numerics.scaled_q:
        scores |= LOG2_E * tau * np.abs(block.q).max(axis=-1) * 1.01 > LARGEST["float16"]
    scores |= (n > 0) & (block.row_maxima == -np.inf) & ~block.blind
    finite_v = np.isfinite(block.v)
    # A weight of 0 times NaN: some kernels skip the key, as some do where a weight drops out.
    skipped = np.zeros((), np.bool_)
    if not finite_v.all():
        no_weight = ~block.weighted & block.visible
        skipped = no_weight.astype(np.float64) @ (~finite_v).astype(np.float64) > 0
    if block.kept is not None:
        # Where all weights of a row drop out, NaN ones too, some kernels are left with 0.
        of_keys = block.kept[..., : problem.kv_len] & block.visible[..., : problem.kv_len]
        skipped = skipped | (~of_keys.any(axis=-1) & ~(block.row_maxima < np.inf))[..., None]
    sums = (block.kept_factor * np.maximum(n, 1)[..., None] * v > largest) | (largest_O > LARGEST[problem.dtype])
    if problem.dtype == "float16" and numerics.weights == "problem" and block.kept_factor > LARGEST["float16"]:
        skipped = np.ones((), np.bool_)
    return scores[..., None] | sums | skipped, scores


def _largest_finite(x: Float64Array) -> Float64Array:
    """The largest magnitude of each column, of what is finite there."""
    largest: Float64Array = np.maximum(x.max(axis=-2, keepdims=True), -x.min(axis=-2, keepdims=True))
    if np.isfinite(largest).all():  # neither a NaN nor an infinity can hide from both
        return largest
    largest = np.abs(np.where(np.isfinite(x), x, 0.0)).max(axis=-2, keepdims=True)
    return largest
