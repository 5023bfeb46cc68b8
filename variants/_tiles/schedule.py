"""Which tiles of keys meet which blocks of rows, and how many bytes each of them is: what claims are summed from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness import Problem
from variants._tiles import Tile, blocks
from variants._tiles.sectors import Integers, run_bytes

FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Schedule:
    """The tiles of a problem. All sums are over batch and heads."""

    problem: Problem
    tile: Tile

    @property
    def first_rows(self) -> Integers:
        """(T_r,): the first row of each block of rows."""
        return np.arange(0, self.problem.q_len, self.tile.Br, dtype=np.int64)

    @property
    def first_keys(self) -> Integers:
        """(T_c,): the first key of each tile of keys."""
        return np.arange(0, self.problem.kv_len, self.tile.Bc, dtype=np.int64)

    @property
    def visits(self) -> Integers:
        """(T_r,): J_i, how many tiles of keys row block i meets: all that its last row sees a key of."""
        last_rows = np.minimum(self.first_rows + self.tile.Br, self.problem.q_len) - 1
        return blocks(keys_seen(self.problem, last_rows), self.tile.Bc)

    @property
    def key_visits(self) -> Integers:
        """(T_c,): how many row blocks of one query head tile j of keys meets."""
        return np.sum(self.visits[:, None] > np.arange(len(self.first_keys)), axis=0)

    def row_block_bytes(self, elements_per_row: int, itemsize_bytes: int, elements_per_lane: int = 1) -> Integers:
        """(T_r,): bytes of moving row block i of every query head once, such as Q_i (or, with one element, l_i)."""
        p = self.problem
        heads = np.arange(p.batch * p.heads, dtype=np.int64)[:, None]
        rows = np.minimum(self.tile.Br, p.q_len - self.first_rows)
        first = (heads * p.q_len + self.first_rows) * elements_per_row
        return np.sum(run_bytes(first, rows * elements_per_row, itemsize_bytes, elements_per_lane), axis=0)

    def key_tile_bytes(self, elements_per_lane: int = 1) -> Integers:
        """(T_c,): bytes of moving K_j, or V_j, once for every query head."""
        p = self.problem
        heads = np.arange(p.batch * p.kv_heads_count, dtype=np.int64)[:, None]
        keys = np.minimum(self.tile.Bc, p.kv_len - self.first_keys)
        first = (heads * p.kv_len + self.first_keys) * p.head_dim
        return p.group * np.sum(run_bytes(first, keys * p.head_dim, p.itemsize_bytes, elements_per_lane), axis=0)


def keys_seen(problem: Problem, rows: Integers) -> Integers:
    """How many keys, counted from the first, these query rows see."""
    if not problem.causal:
        return np.full_like(rows, problem.kv_len)
    return np.clip(rows + 1 - problem.q_len + problem.kv_len, 0, problem.kv_len)
