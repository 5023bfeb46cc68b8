"""Computes scores from tau q.k in float64 for the oracle: cap, ALiBi, sinks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ScoreRule:
    """How the scores of some query heads and rows are computed from products.

    A sink is represented by an additional last key: products have a column for it, its values are zeros, and its score
    is the sink.
    """

    softcap: float | None
    penalty: Float64Array | None
    """(h, rows, keys): what ALiBi subtracts, 0 for the sink. None without ALiBi."""
    sinks: Float64Array | None
    """(h,): logits of the sinks. None without sinks."""

    @property
    def keeps_products(self) -> bool:
        """Whether scores, except for sinks, equal tau q.k."""
        return self.softcap is None and self.penalty is None

    @classmethod
    def of(cls, problem: Problem, inputs: Mapping[str, np.ndarray], heads: slice, rows: slice) -> ScoreRule:
        """Return the rule for these query heads and rows."""
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
        if self.sinks is not None:
            scores = np.concatenate(
                (scores[..., :-1], np.broadcast_to(self.sinks[:, None, None], (*scores.shape[:-1], 1))), axis=-1
            )
        return scores
