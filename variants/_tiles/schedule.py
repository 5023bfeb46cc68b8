"""Which tiles of keys meet which blocks of rows, and how many bytes each of them is: what claims are summed from."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness import Problem
from variants._tiles import blocks
from variants._tiles.sectors import Integers, run_bytes

FLOAT32_BYTES = 4


class Sizes(Protocol):
    """A tile, whatever else there is to it."""

    @property
    def Br(self) -> int:
        """Query rows."""

    @property
    def Bc(self) -> int:
        """Keys."""


@dataclass(frozen=True)
class Schedule:
    """The tiles of a problem. All sums are over batch and heads."""

    problem: Problem
    tile: Sizes

    @property
    def first_rows(self) -> Integers:
        """(T_r,): the first row of each block of rows."""
        return np.arange(0, self.problem.q_len, self.tile.Br, dtype=np.int64)

    @property
    def first_keys(self) -> Integers:
        """(T_c,): the first key of each tile of keys."""
        return np.arange(0, self.problem.kv_len, self.tile.Bc, dtype=np.int64)

    @functools.cached_property
    def _tiles_met(self) -> tuple[Integers, Integers]:
        first, end = self.problem.span(np.arange(self.problem.q_len, dtype=np.int64))
        sees = end > first
        first = np.minimum.reduceat(np.where(sees, first, self.problem.kv_len), self.first_rows)
        end = np.maximum.reduceat(np.where(sees, end, 0), self.first_rows)
        return np.where(end > 0, first // self.tile.Bc, 0), blocks(end, self.tile.Bc)

    @property
    def first_tiles(self) -> Integers:
        """(T_r,): the first tile of keys that row block i meets, which has a key that some row of the block sees."""
        return self._tiles_met[0]

    @property
    def end_tiles(self) -> Integers:
        """(T_r,): one behind the last tile that row block i meets; `first_tiles` where no row sees anything.

        What rows of a block see is taken to be one run: a mask of which that is not true has to visit what lies
        between, too.
        """
        return self._tiles_met[1]

    @property
    def visits(self) -> Integers:
        """(T_r,): J_i, how many tiles of keys row block i meets."""
        return self.end_tiles - self.first_tiles

    @property
    def key_visits(self) -> Integers:
        """(T_c,): how many row blocks of one query head tile j of keys meets."""
        tiles = np.arange(len(self.first_keys))
        return np.sum((self.first_tiles[:, None] <= tiles) & (tiles < self.end_tiles[:, None]), axis=0)

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
