"""Which tiles of keys each block of rows visits, and the bytes of each, from which claims are summed."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness import Problem
from variants._features import has_spans
from variants._tiles import blocks
from variants._tiles.sectors import Integers, run_bytes
from variants._tiles.tile_copies import TileCopy

FLOAT32_BYTES = INT32_BYTES = 4


class Sizes(Protocol):
    """The sizes that every tile has."""

    @property
    def Br(self) -> int:
        """Query rows."""

    @property
    def Bc(self) -> int:
        """Keys."""


@dataclass(frozen=True)
class Schedule:
    """The tiles of a problem. Sums are over heads, and over sequences with the same mask.

    S is the number of sequences with different masks: 1, or the batch. With unpadded sequences, a schedule is that of
    one of them (`schedules`), which is then the batch.
    """

    problem: Problem
    tile: Sizes
    sequence: int | None = None
    """Which of the unpadded sequences; None if the problem has none."""

    @property
    def q_len(self) -> int:
        """Rows of the sequence."""
        return self.problem.q_len if self.sequence is None else self._own[0]

    @property
    def kv_len(self) -> int:
        """Keys of the sequence."""
        return self.problem.kv_len if self.sequence is None else self._own[1]

    @property
    def rows_before(self) -> int:
        """Rows of the unpadded sequences before this one; 0 if there are none."""
        return self._own[2]

    @property
    def keys_before(self) -> int:
        """Keys of the unpadded sequences before this one; 0 if there are none."""
        return self._own[3]

    @property
    def _own(self) -> tuple[int, int, int, int]:
        """Rows and keys of the unpadded sequence, and the rows and keys before it."""
        all_of_them, number = self.problem.sequences, self.sequence
        if all_of_them is None or number is None:
            return self.problem.q_len, self.problem.kv_len, 0, 0
        lengths = all_of_them.q_lengths[number], all_of_them.kv_lengths[number]
        return *lengths, all_of_them.q_starts[number], all_of_them.kv_starts[number]

    @property
    def _spans(self) -> tuple[Integers, Integers]:
        """(S, q_len) each: the first key that each row of the sequence sees, and the end of its run."""
        if self.sequence is None:
            return self.problem.spans
        first, end = self.problem.mask_within.span(np.arange(self.q_len), self.q_len, self.kv_len)
        return first[None], end[None]

    @property
    def owners(self) -> int:
        """Number of thread blocks of all heads, each of which owns a block of rows."""
        return self.problem.batch * self.problem.heads * len(self.first_rows)

    @property
    def first_rows(self) -> Integers:
        """(T_r,): the first row of each block of rows."""
        return np.arange(0, self.q_len, self.tile.Br, dtype=np.int64)

    @property
    def first_keys(self) -> Integers:
        """(T_c,): the first key of each tile of keys."""
        return np.arange(0, self.kv_len, self.tile.Bc, dtype=np.int64)

    @functools.cached_property
    def _tiles_met(self) -> tuple[Integers, Integers]:
        first, end = self._spans
        sees = end > first
        first = np.minimum.reduceat(np.where(sees, first, self.kv_len), self.first_rows, axis=1)
        end = np.maximum.reduceat(np.where(sees, end, 0), self.first_rows, axis=1)
        return np.where(end > 0, first // self.tile.Bc, 0), blocks(end, self.tile.Bc)

    @property
    def first_tiles(self) -> Integers:
        """(S, T_r): the first tile of keys that row block i visits, in which some row of the block sees a key."""
        return self._tiles_met[0]

    @property
    def end_tiles(self) -> Integers:
        """(S, T_r): the end of the tiles that row block i visits; equals `first_tiles` if its rows see no key.

        The rows of a block together see one run (`Mask.span`), so each tile in between has a key that some row sees.
        """
        return self._tiles_met[1]

    @property
    def visits(self) -> Integers:
        """(S, T_r): J_i, how many tiles of keys row block i meets."""
        return self.end_tiles - self.first_tiles

    @property
    def key_visits(self) -> Integers:
        """(S, T_c): how many row blocks of one query head tile j of keys meets."""
        tiles = np.arange(len(self.first_keys))
        met = (self.first_tiles[..., None] <= tiles) & (tiles < self.end_tiles[..., None])
        return np.sum(met, axis=1)

    def row_block_bytes(self, elements_per_row: int, itemsize_bytes: int, elements_per_lane: int = 1) -> Integers:
        """(S, T_r): bytes of moving row block i of every query head once, such as Q_i (or, with one element, l_i)."""
        p = self.problem
        first = (self._heads(p.heads) * p.q_len + self._own[2] + self.first_rows) * elements_per_row
        return np.sum(run_bytes(first, self._rows * elements_per_row, itemsize_bytes, elements_per_lane), axis=1)

    def row_bytes(self, name: str, copy: TileCopy | None = None, elements_per_lane: int = 1) -> Integers:
        """(S, T_r): bytes of moving row block i of a tensor of every query head once; `name` is Q, O, dQ or dO.

        With `copy` it is brought on chip by asynchronous copies; else a lane moves `elements_per_lane` at once.
        """
        return np.sum(self._moved(name, self.first_rows, self._rows, copy, elements_per_lane), axis=1)

    def key_tile_bytes(self, copy: TileCopy | None = None, elements_per_lane: int = 1) -> Integers:
        """(S, T_c): bytes of moving K_j, or V_j, once for every query head.

        With `copy` they are brought on chip by asynchronous copies; else a lane moves `elements_per_lane` at once.
        """
        return np.sum(self.key_tile_bytes_of_heads(copy, elements_per_lane), axis=1)

    def key_tile_bytes_of_heads(self, copy: TileCopy | None = None, elements_per_lane: int = 1) -> Integers:
        """(S, query heads, T_c): bytes of moving K_j, or V_j, of each query head, counted through the batch.

        With `copy` they are brought on chip by asynchronous copies; else a lane moves `elements_per_lane` at once.
        """
        moved = self._moved("K", self.first_keys, self._keys, copy, elements_per_lane)
        return np.repeat(moved, self.problem.group, axis=1)

    def key_and_value_bytes_of_heads(
        self, copy: TileCopy | None = None, elements_per_lane: int = 1, copy_of_V: TileCopy | None = None
    ) -> Integers:
        """(S, query heads, T_c): bytes of moving K_j and V_j, as `key_tile_bytes_of_heads`.

        `copy_of_V` is that of V if its rows are not as long as those of K.
        """
        if self.problem.layout.is_dense and self.problem.v_head_dim is None:
            return 2 * self.key_tile_bytes_of_heads(copy, elements_per_lane)
        copies = {"K": copy, "V": copy if self.problem.v_head_dim is None else copy_of_V}
        moved = (self._moved(n, self.first_keys, self._keys, c, elements_per_lane) for n, c in copies.items())
        return np.repeat(sum(moved), self.problem.group, axis=1)

    def _moved(
        self, name: str, first_rows: Integers, rows: Integers, copy: TileCopy | None, elements_per_lane: int
    ) -> Integers:
        """(S, heads, tiles): bytes of moving tiles of a tensor that begin at these rows and have so many, once each."""
        p = self.problem
        tensor = p.tensor(name)
        heads, length, width = tensor.shape[1:]
        first_rows = first_rows + self._own[2 if name[-1] in "QO" else 3]
        if p.layout.is_dense:
            first, elements = (self._heads(heads) * length + first_rows) * width, rows * width
            if copy is None:
                return run_bytes(first, elements, p.itemsize_bytes, elements_per_lane)
            return copy.bytes(first, elements)
        of_sequence, of_head, of_row, _ = tensor.strides
        sequence, head = np.divmod(self._heads(heads), heads)
        first = tensor.first + sequence * of_sequence + head * of_head + first_rows * of_row
        if copy is None:
            copy = TileCopy(width, p.itemsize_bytes, elements_per_lane, pitch_bytes=0, asynchronous=False)
        strided = dataclasses.replace(copy, row_stride_bytes=of_row * p.itemsize_bytes)
        return strided.bytes(first, rows * width)

    def limit_bytes(self) -> Integers:
        """(S, T_r): bytes of reading the first keys and the ends of row block i once for every query head.

        0 if the mask is a band, which is two numbers.
        """
        return self._limits_of(self.problem.heads, self.problem.q_len, self.first_rows, self._rows)

    def _limits_of(self, readers: int, length: int, first: Integers, extents: Integers) -> Integers:
        """(S, blocks): bytes of reading runs once for each of `readers` heads; `length`: rows, or keys, in all."""
        runs = 2 * np.sum(run_bytes(self._heads(1) * length + first, extents, INT32_BYTES), axis=1)
        return readers * runs if has_spans(self.problem) else np.zeros_like(runs)

    @property
    def _rows(self) -> Integers:
        """(T_r,): number of rows of each block."""
        return np.minimum(self.tile.Br, self.q_len - self.first_rows)

    @property
    def _keys(self) -> Integers:
        """(T_c,): number of keys of each tile."""
        return np.minimum(self.tile.Bc, self.kv_len - self.first_keys)

    def _heads(self, per_sequence: int) -> Integers:
        """(S, heads, 1): all heads of the batch, counted through."""
        p = self.problem
        return np.arange(p.batch * per_sequence, dtype=np.int64).reshape(len(self._spans[0]), -1, 1)


def schedules(problem: Problem, tile: Sizes) -> tuple[Schedule, ...]:
    """Return the tiles of each unpadded sequence that has rows; of the whole problem if it has no such sequences."""
    if problem.sequences is None:
        return (Schedule(problem, tile),)
    lengths = problem.sequences.q_lengths
    return tuple(Schedule(problem, tile, number) for number, length in enumerate(lengths) if length)
