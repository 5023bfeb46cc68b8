"""Inputs of the score rules: ALiBi's slopes, and the sinks that regimes draw."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import SLOPES, Problem

Float64Array = npt.NDArray[np.float64]

SINK_OFFSETS = (0.0, -1.0, 2.0, -math.inf, 5.0, 1.0, 30.0, -40.0, 95.0)
"""Distances of drawn sinks from the log-sum-exp of a row's scores: half of the weight, more, little, all, none."""
SINKS_FOR_ZERO_SCORES = (0.0, -math.inf, 2.0)
"""Sinks if every q.k is 0. A sink of 0 has the weight of a key, so that 1 / (n + 1) may be exact."""


def alibi_slopes(heads: int) -> Float64Array:
    """Return a slope per query head (Press, Smith and Lewis 2022, arXiv 2108.12409, section 3).

    For n heads, n a power of two, slopes are the powers of 2^(-8 / n). For other numbers, as in the paper's code, they
    are the slopes of the next smaller power of two, followed by every other slope of the next larger one.
    """
    power = 2 ** int(math.log2(heads))
    slopes = _geometric(power)
    return np.concatenate((slopes, _geometric(2 * power)[::2][: heads - power]))


def slope_arrays(problem: Problem) -> Mapping[str, npt.NDArray[np.float32]]:
    """Return the input `slopes`, if the problem has ALiBi."""
    return {SLOPES: alibi_slopes(problem.heads).astype(np.float32)} if problem.alibi else {}


def drawn_sinks(rng: np.random.Generator, problem: Problem, q: Float64Array, k: Float64Array) -> Float64Array:
    """Draw a sink per query head: near the scores of the first sequence's last row, above, below, or -inf."""
    offsets = np.resize(rng.permutation(SINKS_FOR_ZERO_SCORES if not q.any() else SINK_OFFSETS), problem.heads)
    first, end = (int(ends[0]) for ends in problem.span(np.array([problem.q_len - 1])))
    seen = slice(first, end) if end > first else slice(None)
    if not q.any():
        return offsets
    with np.errstate(all="ignore"):
        scores = problem.tau * np.einsum(
            "hd,hkd->hk", q[0, :, -1], k[0, np.arange(problem.heads) // problem.group, seen]
        )
        if problem.softcap is not None:
            scores = problem.softcap * np.tanh(scores / problem.softcap)
        scores = np.where(np.isfinite(scores), scores, 0.0)
        largest = scores.max(axis=1)
        sinks: Float64Array = offsets + largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
    return sinks


def _geometric(count: int) -> Float64Array:
    slopes: Float64Array = np.exp2(-8.0 / count * np.arange(1, count + 1, dtype=np.float64))
    return slopes
