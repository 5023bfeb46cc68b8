"""FlashMask: which tiles it hides whole, as the extremes of their spans tell, and what it costs to look."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import Buffer, Launch, Problem
from variants._tiles import Tile, blocks
from variants._tiles.schedule import INT32_BYTES, Sizes
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers, run_bytes


@dataclass(frozen=True)
class FlashMaskRule:
    """The rule of a FlashMask, in which each key has spans of rows that do not see it; implements `Rule`."""

    problem: Problem
    tile: Sizes

    file = "flashmask.cuh"
    lists = 1
    arguments = ("hidden_rows", "extremes")

    @property
    def cuda_type(self) -> str:
        """The type of flashmask.cuh for so many spans."""
        return f"FlashMask<{self._spans_per_key}>"

    @property
    def in_numba(self) -> Any:
        """The Numba twin of flashmask.cuh."""
        from variants._tiles.numba_flashmask_rule import numba_flashmask_rule

        return numba_flashmask_rule(self._spans_per_key)

    @property
    def cuda_kernels(self) -> tuple[Any, ...]:
        """The CUDA kernel that computes each tile's extremes."""
        from variants._tiles.rawkernel import raw_kernel

        options = (f"-DBC={self.tile.Bc}", f"-DSPANS_PER_KEY={self._spans_per_key}")
        return (raw_kernel("_tiles", "tile_extremes", options, (), file="tile_extremes.cu"),)

    @property
    def numba_kernels(self) -> tuple[Any, ...]:
        """The Numba kernel that computes each tile's extremes."""
        from variants._tiles.numba_flashmask_rule import tile_extremes_kernel

        return (tile_extremes_kernel(Tile(self.tile.Br, self.tile.Bc), self._spans_per_key),)

    def launches(self, kernels: tuple[Any, ...]) -> tuple[Launch, ...]:
        """The launch that computes each tile's extremes."""
        (tile_extremes,) = kernels
        args = ("extremes", "hidden_rows", np.int32(self.problem.kv_len))
        return (Launch(tile_extremes, (len(self._first_keys),), (LANES,), args),)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The extremes of each tile's spans."""
        return (Buffer("extremes", (len(self._first_keys), 4 * self._spans_per_key), "int32"),)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes that the launch reads and writes; each line of starts and of ends is a run of a tile's keys."""
        lines, tiles = np.arange(2 * self._spans_per_key)[:, None], len(self._first_keys)
        keys = np.minimum(self.tile.Bc, self.problem.kv_len - self._first_keys)
        read = run_bytes(lines * self.problem.kv_len + self._first_keys, keys, INT32_BYTES).sum()
        # 16 or 32 bytes lie in one sector.
        return int(read), tiles * SECTOR_BYTES

    @functools.cached_property
    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """(L, T_r, T_c) each: whether a block's rows see any of a tile's keys, and whether they see all."""
        p = self.problem
        first_rows = np.arange(0, p.q_len, self.tile.Br)[:, None]
        last_rows = np.minimum(first_rows + self.tile.Br, p.q_len) - 1
        shape = (1, len(first_rows), len(self._first_keys))
        some, each = np.ones(shape, np.bool_), np.ones(shape, np.bool_)
        for starts, ends in self._hidden_rows.reshape(-1, 2, p.kv_len):
            (least_start, least_end), (largest_start, largest_end) = (
                [extreme.reduceat(line, self._first_keys) for line in (starts, ends)]
                for extreme in (np.minimum, np.maximum)
            )
            some &= ~((largest_start <= first_rows) & (last_rows < least_end))
            each &= (last_rows < least_start) | (largest_end <= first_rows)
        return some, each

    @property
    def look_bytes(self) -> Integers:
        """(L, T_r, T_c): bytes of computing `seen` once: one sector of extremes."""
        return np.full(self.seen[0].shape, SECTOR_BYTES, dtype=np.int64)

    def note_bytes(self, warps: int) -> Integers:
        """(L, T_r, T_c): bytes of a mixed tile's bits; each warp reads the spans of 32 keys at a time."""
        last_keys = (np.minimum(self._first_keys + self.tile.Bc, self.problem.kv_len) - 1)[:, None]
        words = LANES * np.arange(int(blocks(self.tile.Bc, LANES)))
        first = np.minimum(self._first_keys[:, None] + words, last_keys)
        keys = np.minimum(self._first_keys[:, None] + words + LANES - 1, last_keys) - first + 1
        lines = np.arange(2 * self._spans_per_key)[:, None, None] * self.problem.kv_len
        of_tiles = warps * run_bytes(lines + first, keys, INT32_BYTES).sum(axis=(0, 2))
        return np.broadcast_to(of_tiles, self.seen[0].shape)

    @property
    def _first_keys(self) -> Integers:
        return np.arange(0, self.problem.kv_len, self.tile.Bc, dtype=np.int64)

    @property
    def _spans_per_key(self) -> int:
        mask = self.problem.flashmask
        assert mask is not None
        return mask.spans_per_key

    @functools.cached_property
    def _hidden_rows(self) -> Integers:
        mask = self.problem.flashmask
        assert mask is not None
        return mask.hidden_rows(self.problem.q_len, self.problem.kv_len)
