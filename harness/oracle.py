"""Attention in float64 from the stored inputs: what the answer is. Shares no masking or tiling with any kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.problem import Problem

Float64Array = npt.NDArray[np.float64]

BLOCK_BYTES = 32 * 2**20
"""How much one float64 matrix of scores may take; query rows are handled in blocks of that size."""


@dataclass(frozen=True)
class Reference:
    """The answer in float64."""

    O: Float64Array
    """Shape (batch, heads, q_len, head_dim)."""
    lse: Float64Array
    """Natural logarithm of sum exp(scores), shape (batch, heads, q_len); -inf where a row sees no key."""


@dataclass(frozen=True)
class RowBlock:
    """Some query rows of one head with all their keys, in float64."""

    where: tuple[int, int, slice]
    """Batch, query head and rows: an index into O and lse."""
    q: Float64Array
    """(rows, head_dim)."""
    k: Float64Array
    """(kv_len, head_dim)."""
    v: Float64Array
    """(kv_len, head_dim)."""
    visible: npt.NDArray[np.bool_]
    """(rows, kv_len): which keys each row sees."""
    scores: Float64Array
    """(rows, kv_len): tau q.k, and -inf at keys that are not visible."""

    @property
    def sees_nothing(self) -> npt.NDArray[np.bool_]:
        """(rows,): fully masked."""
        nothing: npt.NDArray[np.bool_] = ~np.any(self.visible, axis=1)
        return nothing

    def largest_scores(self) -> Float64Array:
        """(rows,): the maximum, NaN where a visible score is NaN, 0 where the row sees nothing."""
        # np.max and not np.fmax: the latter swallows NaN.
        largest: Float64Array = np.where(self.sees_nothing, 0.0, np.max(self.scores, axis=1))
        return largest


def row_blocks(problem: Problem, inputs: Mapping[str, np.ndarray]) -> Iterator[RowBlock]:
    """Every query row of the problem once, block by block, so that memory stays bounded at any length.

    `inputs` has Q of shape (batch, heads, q_len, head_dim), K and V of (batch, kv_heads, kv_len, head_dim).
    """
    rows_per_block = max(1, BLOCK_BYTES // (8 * problem.kv_len))
    key_index = np.arange(problem.kv_len)
    for batch in range(problem.batch):
        for kv_head in range(problem.kv_heads_count):
            k = inputs["K"][batch, kv_head].astype(np.float64)
            v = inputs["V"][batch, kv_head].astype(np.float64)
            for head in range(kv_head * problem.group, (kv_head + 1) * problem.group):
                for start in range(0, problem.q_len, rows_per_block):
                    rows = slice(start, min(start + rows_per_block, problem.q_len))
                    q = inputs["Q"][batch, head, rows].astype(np.float64)
                    row_index = np.arange(rows.start, rows.stop)
                    visible = np.ones((len(q), problem.kv_len), dtype=np.bool_)
                    if problem.causal:
                        last_visible = row_index + (problem.kv_len - problem.q_len)
                        visible = key_index[None, :] <= last_visible[:, None]
                    with np.errstate(invalid="ignore", over="ignore"):
                        scores = np.where(visible, problem.tau * (q @ k.T), -np.inf)
                    yield RowBlock((batch, head, rows), q, k, v, visible, scores)


def attention(problem: Problem, inputs: Mapping[str, np.ndarray]) -> Reference:
    """O = softmax(tau Q K^T + mask) V and its log-sum-exp, in float64 (Vaswani et al. 2017, equation 1).

    Fully masked rows give O = 0 and lse = -inf. A NaN in a visible key reaches the rows that see it, and no other.
    """
    O = np.empty(problem.q_shape)
    lse = np.empty(problem.lse_shape)
    for block in row_blocks(problem, inputs):
        m = block.largest_scores()
        with np.errstate(invalid="ignore"):
            weights = np.exp(block.scores - m[:, None])
            denominator = np.sum(weights, axis=1)
            sums = _weighted_sums(weights, block)
        empty = block.sees_nothing
        denominator[empty] = 1.0
        O[block.where] = np.where(empty[:, None], 0.0, sums / denominator[:, None])
        lse[block.where] = np.where(empty, -np.inf, m + np.log(denominator))
    return Reference(O, lse)


def _weighted_sums(weights: Float64Array, block: RowBlock) -> Float64Array:
    if np.isfinite(block.v).all():
        return weights @ block.v
    # 0 x NaN is NaN: a value that is not finite must not reach a row that does not see it.
    return np.stack([w[seen] @ block.v[seen] for w, seen in zip(weights, block.visible, strict=True)])
