"""From tau q.k to the logits of a softmax: the cap, ALiBi's penalty, sinks. The oracle's own rule, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import SLOPES, Problem

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoreRule:
    """What becomes of the products of some heads and rows.

    A sink is one more key, the last: products have a column for it, its values are zeros, and its score is the sink.
    """

    softcap: float | None
    penalty: Float64Array | None
    """(h, rows, keys): what ALiBi takes off; 0 for the sink. None: nothing."""
    sinks: Float64Array | None
    """(h,). None: there are none."""

    @property
    def keeps_products(self) -> bool:
        """Whether scores are tau q.k, but for sinks."""
        return self.softcap is None and self.penalty is None

    @classmethod
    def of(cls, problem: Problem, inputs: Mapping[str, np.ndarray], heads: slice, rows: slice) -> ScoreRule:
        """The rule for these query heads and rows."""
        sinks = inputs["sinks"][heads].astype(np.float64) if problem.sinks else None
        penalty = None
        if problem.alibi:
            place = np.arange(rows.start, rows.stop)[:, None] + problem.kv_len - problem.q_len
            distance = np.abs(place - np.arange(problem.kv_len))
            penalty = inputs["slopes"][heads].astype(np.float64)[:, None, None] * distance
            if sinks is not None:
                penalty = np.concatenate((penalty, np.zeros((*penalty.shape[:2], 1))), axis=-1)
        return cls(problem.softcap, penalty, sinks)

    def with_sink(self, keys: Float64Array) -> Float64Array:
        """Keys or values, (b, h, keys, d), and a row of zeros for the sink, if there is one."""
        if self.sinks is None:
            return keys
        return np.concatenate((keys, np.zeros((*keys.shape[:2], 1, keys.shape[3]))), axis=-2)

    def scores(self, products: Float64Array) -> Float64Array:
        """`products` are tau q.k, (b, h, rows, keys): the scores, not yet masked."""
        scores = products
        if self.softcap is not None:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.penalty is not None:
            scores = scores - self.penalty
        if self.sinks is not None:
            scores = np.concatenate(
                (scores[..., :-1], np.broadcast_to(self.sinks[:, None, None], (*scores.shape[:-1], 1))), axis=-1
            )
        return scores


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
