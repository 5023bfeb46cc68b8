"""Computes scores from tau q.k in float64 for the oracle: score terms and sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from harness.model.array_types import Float64Array, Mask
from harness.operations.attention.problem import Problem
from harness.operations.attention.score_term import Effect
from harness.operations.attention.score_terms import SINKS


@dataclass(frozen=True)
class ScoreRule:
    """How the scores of some query heads and rows are computed from products.

    A sink is represented by an additional last key: products have a column for it, its values are zeros, and its score
    is the sink.
    """

    effects: tuple[Effect, ...]
    """Of the problem's score terms, in their order. They do not apply to the sink."""
    sinks: Float64Array | None
    """(h,): logits of the sinks. None without sinks."""

    @property
    def keeps_products(self) -> bool:
        """Whether scores, except for sinks, equal tau q.k."""
        return not self.effects

    @classmethod
    def of(cls, problem: Problem, inputs: Mapping[str, np.ndarray], heads: slice, rows: slice) -> ScoreRule:
        """Return the rule for these query heads and rows."""
        keys = slice(0, problem.kv_len)
        effects = tuple(term.effect(problem, inputs, heads, rows, keys) for term in problem.score_terms)
        return cls(effects, inputs[SINKS][heads].astype(np.float64) if problem.sinks else None)

    def with_sink(self, keys: Float64Array) -> Float64Array:
        """Append a row of zeros for the sink, if there is one, to keys or values, (b, h, keys, d)."""
        if self.sinks is None:
            return keys
        return np.concatenate((keys, np.zeros((*keys.shape[:2], 1, keys.shape[3]))), axis=-2)

    def of_keys(self, scores: np.ndarray) -> np.ndarray:
        """Return `scores`, (..., keys), without the sink's."""
        return scores if self.sinks is None else scores[..., :-1]

    def stages(self, products: Float64Array) -> Iterator[Float64Array]:
        """Yield the scores before the first term and after each, without the sink's."""
        scores = self.of_keys(products)
        yield scores
        for effect in self.effects:
            scores = effect.apply(scores)
            yield scores

    def scores(self, products: Float64Array) -> Float64Array:
        """Return the scores before the mask, given `products`, tau q.k, (b, h, rows, keys)."""
        *_, scores = self.stages(products)
        if self.sinks is None:
            return scores
        return np.concatenate((scores, np.broadcast_to(self.sinks[:, None, None], (*scores.shape[:-1], 1))), axis=-1)

    def hides(self, keys: int) -> Mask | None:
        """Return which of the `keys`, of which a sink is the last, terms hide; broadcasts to (b, h, rows, keys).

        None if they hide none.
        """
        hidden: Mask | None = None
        for effect in self.effects:
            if effect.hides is not None:
                hidden = effect.hides if hidden is None else hidden | effect.hides
        if hidden is None or hidden.shape[-1] == keys:
            return hidden
        return np.concatenate((hidden, np.zeros((*hidden.shape[:-1], 1), np.bool_)), axis=-1)

    def hidden(self, scores: Float64Array) -> Mask | None:
        """Return which keys a term hides, given their `scores`, (b, h, rows, keys); None if it hides none.

        A score that is NaN was NaN or +inf before, so the key is not hidden.
        """
        hides = self.hides(scores.shape[-1])
        return None if hides is None else hides & np.isneginf(scores)

    def largest_stored(self, scores: Float64Array) -> Float64Array:
        """Return the largest magnitude of a score that a kernel may store, given `scores`, (b, h, rows, keys)."""
        magnitude: Float64Array = np.abs(scores)
        of_keys = self.of_keys(scores)
        for effect in reversed(self.effects):
            of_keys = effect.before(of_keys)
            stored = self.of_keys(magnitude)
            np.fmax(stored, np.abs(of_keys), out=stored)
        return magnitude
