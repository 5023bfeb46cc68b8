"""Computes scores from tau q.k in float64 for the oracle: cap, ALiBi, bias, sinks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.operations.attention.bias import BIAS
from harness.operations.attention.problem import SLOPES, Problem

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ScoreRule:
    """How the scores of some query heads and rows are computed from products.

    A sink is represented by an additional last key: products have a column for it, its values are zeros, and its score
    is the sink.
    """

    softcap: float | None
    penalty: Float64Array | None
    """(h, rows, keys): what ALiBi subtracts, 0 for the sink. None without ALiBi."""
    bias: Float64Array | None
    """(h or 1, rows or 1, keys): what is added, 0 for the sink. None without a bias."""
    sinks: Float64Array | None
    """(h,): logits of the sinks. None without sinks."""

    @property
    def keeps_products(self) -> bool:
        """Whether scores, except for sinks, equal tau q.k."""
        return self.softcap is None and self.penalty is None and self.bias is None

    @classmethod
    def of(cls, problem: Problem, inputs: Mapping[str, np.ndarray], heads: slice, rows: slice) -> ScoreRule:
        """Return the rule for these query heads and rows."""
        sinks = inputs["sinks"][heads].astype(np.float64) if problem.sinks else None
        penalty = None
        if problem.alibi:
            place = np.arange(rows.start, rows.stop)[:, None] + problem.diagonal
            distance = np.abs(place - np.arange(problem.kv_len))
            penalty = inputs["slopes"][heads].astype(np.float64)[:, None, None] * distance
        bias = None
        if problem.bias is not None:
            own = (heads if "heads" in problem.bias else slice(None), rows if "q_len" in problem.bias else slice(None))
            bias = inputs[BIAS][own].astype(np.float64)
            bias = np.broadcast_to(bias, (*bias.shape[:2], problem.kv_len))
        if sinks is not None:
            penalty, bias = (None if each is None else _with_zero(each) for each in (penalty, bias))
        return cls(problem.softcap, penalty, bias, sinks)

    def with_sink(self, keys: Float64Array) -> Float64Array:
        """Append a row of zeros for the sink, if there is one, to keys or values, (b, h, keys, d)."""
        if self.sinks is None:
            return keys
        return np.concatenate((keys, np.zeros((*keys.shape[:2], 1, keys.shape[3]))), axis=-2)

    def scores(self, products: Float64Array) -> Float64Array:
        """Return the scores before the mask, given `products`, tau q.k, (b, h, rows, keys)."""
        scores = products
        if self.softcap is not None:
            scores = self.softcap * np.tanh(scores / self.softcap)
        if self.penalty is not None:
            scores = scores - self.penalty
        if self.bias is not None:
            scores = scores + self.bias
        if self.sinks is not None:
            scores = np.concatenate(
                (scores[..., :-1], np.broadcast_to(self.sinks[:, None, None], (*scores.shape[:-1], 1))), axis=-1
            )
        return scores

    def hidden(self, scores: Float64Array) -> Mask | None:
        """Return which keys a bias of -inf hides, given their `scores`, (b, h, rows, keys); None if it hides none.

        A score that is NaN was NaN or +inf before, so the key is not hidden.
        """
        if self.bias is None or not (is_hiding := np.isneginf(self.bias)).any():
            return None
        hidden: Mask = is_hiding & np.isneginf(scores)
        return hidden


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


def drawn_sinks(
    rng: np.random.Generator, problem: Problem, q: Float64Array, k: Float64Array, bias: Float64Array | None = None
) -> Float64Array:
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
        if bias is not None:
            scores = scores + np.broadcast_to(bias[:, -1], (len(bias), problem.kv_len))[:, seen]
        scores = np.where(np.isfinite(scores), scores, 0.0)
        largest = scores.max(axis=1)
        sinks: Float64Array = offsets + largest + np.log(np.exp(scores - largest[:, None]).sum(axis=1))
    return sinks


def _with_zero(of_keys: Float64Array) -> Float64Array:
    """Append 0 for a sink to (h, rows, keys)."""
    return np.concatenate((of_keys, np.zeros((*of_keys.shape[:2], 1))), axis=-1)


def _geometric(count: int) -> Float64Array:
    return np.exp2(-8.0 / count * np.arange(1, count + 1, dtype=np.float64))
