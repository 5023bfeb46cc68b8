"""What belongs to the rules of scores and is an input: ALiBi's slopes, and the sinks that regimes draw."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import SLOPES, Problem

Float64Array = npt.NDArray[np.float64]

FROM_THE_SCORES = (0.0, -1.0, 2.0, -math.inf, 5.0, 1.0, 30.0, -40.0, 95.0)
"""How far sinks lie above the log-sum-exp of a row's scores: half of the weight, more, hardly any, all, none."""
BESIDE_ZEROS = (0.0, -math.inf, 2.0)
"""Sinks where every q.k is 0: with 0 a sink weighs as much as a key, and 1 / (n + 1) may be exact."""


def alibi_slopes(heads: int) -> Float64Array:
    """A slope per query head (Press, Smith and Lewis 2022, arXiv 2108.12409, section 3).

    Of n heads, n a power of two: 2^(-8 / n), and its powers. Of other numbers, as in the paper's code: those of the
    largest power of two below, then every other one of the next power of two, from its first on.
    """
    power = 2 ** int(math.log2(heads))
    slopes = _geometric(power)
    return np.concatenate((slopes, _geometric(2 * power)[::2][: heads - power]))


def slope_arrays(problem: Problem) -> Mapping[str, npt.NDArray[np.float32]]:
    """These, as the input that they are; nothing where there are none."""
    return {SLOPES: alibi_slopes(problem.heads).astype(np.float32)} if problem.alibi else {}


def drawn_sinks(rng: np.random.Generator, problem: Problem, q: Float64Array, k: Float64Array) -> Float64Array:
    """A sink per query head: near the scores of the first sequence's last row, above them, below, and -inf."""
    offsets = np.resize(rng.permutation(BESIDE_ZEROS if not q.any() else FROM_THE_SCORES), problem.heads)
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
