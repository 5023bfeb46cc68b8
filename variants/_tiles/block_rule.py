"""A mask of blocks of rows and keys that are on or off: which tiles it leaves, and what it costs to look."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from harness import Buffer, Launch, Problem
from variants._tiles import THREADS_Y, blocks
from variants._tiles.schedule import INT32_BYTES, Sizes
from variants._tiles.sectors import LANES, Integers, run_bytes


@dataclass(frozen=True)
class BlockRule:
    """The rule of a block mask, in which each block of rows and keys is on or off; implements `Rule`."""

    problem: Problem
    tile: Sizes

    file = "block_mask.cuh"
    cuda_type = "BlockMask"

    @property
    def lists(self) -> int:
        """Number of block masks per sequence."""
        return len(self._on)

    @property
    def arguments(self) -> tuple[str | np.int32, ...]:
        """Kernel arguments: which blocks are on, and the rows and the keys of each."""
        rows, keys = self._size
        return ("blocks", np.int32(rows), np.int32(keys))

    @property
    def in_numba(self) -> Any:
        """The Numba twin of block_mask.cuh."""
        from variants._tiles.numba_block_rule import RULE

        return RULE

    # Blocks are looked at as they are: nothing is worked out before.
    cuda_kernels: ClassVar[tuple[Any, ...]] = ()
    numba_kernels: ClassVar[tuple[Any, ...]] = ()
    buffers: ClassVar[tuple[Buffer, ...]] = ()
    traffic: ClassVar[tuple[int, int]] = (0, 0)

    def launches(self, kernels: tuple[Any, ...]) -> tuple[Launch, ...]:
        """No launches: kernels read the blocks directly."""
        return ()

    @functools.cached_property
    def seen(self) -> tuple[np.ndarray, np.ndarray]:
        """(L, T_r, T_c) each: whether a block's rows see any of a tile's keys, and whether they see all."""
        (first_i, end_i), (first_j, end_j) = self._met_by_rows, self._met_by_keys
        # Sums over all blocks above and to the left give any rectangle's.
        on = self._on
        sums = np.zeros((len(on), on.shape[1] + 1, on.shape[2] + 1), dtype=np.int64)
        sums[:, 1:, 1:] = on.cumsum(axis=1).cumsum(axis=2)
        to_end = sums[:, end_i][:, :, end_j] - sums[:, end_i][:, :, first_j]
        seen = to_end - (sums[:, first_i][:, :, end_j] - sums[:, first_i][:, :, first_j])
        return seen > 0, seen == (end_i - first_i)[:, None] * (end_j - first_j)

    @property
    def look_bytes(self) -> Integers:
        """(L, T_r, T_c): bytes of computing `seen` once; each row of the blocks that a tile meets is a run."""
        (first_i, end_i), (first_j, end_j) = self._met_by_rows, self._met_by_keys
        looked = [np.arange(first, end) for first, end in zip(first_i, end_i)]
        return self._bytes_of_runs(looked, first_j[:, None], end_j[:, None])

    def note_bytes(self, warps: int) -> Integers:
        """(L, T_r, T_c): bytes of a mixed tile's bits: a run per word of bits and block row of a warp's rows."""
        p, tile = self.problem, self.tile
        share = int(blocks(tile.Br, THREADS_Y)) * THREADS_Y // warps
        first_rows = np.arange(0, p.q_len, tile.Br)
        first_keys = np.arange(0, p.kv_len, tile.Bc)
        last_rows = np.minimum(first_rows + tile.Br, p.q_len) - 1
        noted = []
        for row, last in zip(first_rows, last_rows):
            of_warps = (np.minimum(row + np.arange(w * share, (w + 1) * share), last) for w in range(warps))
            noted.append(np.concatenate([np.unique(rows // self._size[0]) for rows in of_warps]))
        last_keys = (np.minimum(first_keys + tile.Bc, p.kv_len) - 1)[:, None]
        keys = first_keys[:, None] + np.arange(0, tile.Bc, LANES)
        first_j, last_j = (np.minimum(each, last_keys) // self._size[1] for each in (keys, keys + LANES - 1))
        return self._bytes_of_runs(noted, first_j, last_j + 1)

    def _bytes_of_runs(self, rows_of_blocks: list[Integers], first_j: Integers, end_j: Integers) -> Integers:
        """(L, T_r, T_c): of such runs, (T_c, runs), in each of those rows, which are listed for each block of rows."""
        number, rows, columns = self._on.shape
        moved = np.zeros((number, len(rows_of_blocks), len(first_j)), dtype=np.int64)
        for head in range(number):
            for row_block, of_rows in enumerate(rows_of_blocks):
                start = (head * rows + of_rows)[:, None, None] * columns + first_j
                moved[head, row_block] = run_bytes(start, end_j - first_j, INT32_BYTES).sum(axis=(0, 2))
        return moved

    @functools.cached_property
    def _on(self) -> np.ndarray:
        """(L, rows of blocks, blocks in each)."""
        mask = self.problem.blocks
        assert mask is not None
        return mask.array(self.problem.heads, self.problem.q_len, self.problem.kv_len)

    @property
    def _size(self) -> tuple[int, int]:
        """Rows and keys of a block."""
        mask = self.problem.blocks
        assert mask is not None
        return mask.size_for(self.problem.q_len, self.problem.kv_len)

    @property
    def _met_by_rows(self) -> tuple[Integers, Integers]:
        return _met(self.problem.q_len, self.tile.Br, self._size[0])

    @property
    def _met_by_keys(self) -> tuple[Integers, Integers]:
        return _met(self.problem.kv_len, self.tile.Bc, self._size[1])


def _met(extent: int, size: int, block: int) -> tuple[Integers, Integers]:
    """The blocks that each tile meets along one axis: the first, and one behind the last."""
    first = np.arange(0, extent, size, dtype=np.int64)
    return first // block, (np.minimum(first + size, extent) - 1) // block + 1
