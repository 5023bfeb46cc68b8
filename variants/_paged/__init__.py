"""Paged attention: what its algorithms have in common.

The rows of the query heads that share a key/value head of a sequence are consecutive in Q and in O: row r of such a
group is query r % q_len, and a block owns `Br` rows of a group, across heads. A tile of keys lies within one page and
starts at a sector boundary, so claims do not depend on the page table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import PagedProblem
from variants._features import FOLDER, Feature, Files
from variants._mma import tile_copy
from variants._tiles import MOST_BLOCKS_ALONG_Y, blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes
from variants._tiles.tile_copies import TileCopy

INT32_BYTES, FLOAT32_BYTES = 4, 4
WARP_LANES = 32
KV_DTYPE_FEATURE = "kv_dtype"
"""Feature in `takes` of a variant whose kernels take K and V in 8 bits with scales."""
SEQUENCES = (("_paged", "sequences.cuh"),)
"""CUDA file of kernels that divide keys among blocks."""
STRIDED_POOLS = (("_features", "layout.cuh"), ("_paged", "strided_pools.cuh"))
"""CUDA files of pools whose pages have strides."""
SPLIT_PAGES = (*SEQUENCES, ("_paged", "split_pages.cuh"))
"""CUDA files of kernels whose blocks own a split of a sequence's keys."""


@dataclass(frozen=True)
class PackedRows:
    """The rows of all groups in tiles of `Br`, and what they see."""

    problem: PagedProblem
    Br: int

    @property
    def group_rows(self) -> int:
        """Rows that share a key/value head of one sequence."""
        return self.problem.group * self.problem.q_len

    @property
    def first_rows(self) -> Integers:
        """(tiles,): the first row of each tile of a group."""
        return np.arange(0, self.group_rows, self.Br, dtype=np.int64)

    @property
    def rows(self) -> Integers:
        """(tiles,): how many rows each has."""
        return np.minimum(self.Br, self.group_rows - self.first_rows)

    @property
    def lengths(self) -> Integers:
        """(sequences, 1): the keys of each."""
        return np.array(self.problem.lengths, np.int64)[:, None]

    @property
    def firsts(self) -> Integers:
        """(sequences, tiles): the first key that a row of the tile sees."""
        first = self.first_rows % self.problem.q_len
        return self.first_seen(np.where(first + self.rows > self.problem.q_len, 0, first))

    def first_seen(self, queries: npt.ArrayLike) -> Integers:
        """(sequences, queries): the first key that a query of each sequence sees."""
        own = np.asarray(queries, np.int64) + self.lengths - self.problem.q_len
        seen: Integers = np.zeros_like(own) if self.problem.window is None else own - self.problem.window
        return np.clip(seen, 0, self.lengths)

    @property
    def ends(self) -> Integers:
        """(sequences, tiles): keys up to the last that a row of the tile sees, 0 where none does."""
        last = self.first_rows % self.problem.q_len + self.rows - 1
        return self.end_seen(np.minimum(last, self.problem.q_len - 1))

    def end_seen(self, queries: npt.ArrayLike) -> Integers:
        """(sequences, queries): keys that a query of each sequence sees."""
        seen: Integers = np.asarray(queries, np.int64) + self.lengths - self.problem.q_len + 1
        return np.clip(seen, 0, self.lengths)

    @property
    def first_stats(self) -> Integers:
        """(sequences, kv_heads, tiles): a tile's first row, counted through O."""
        groups = np.arange(self.problem.sequences * self.problem.kv_heads, dtype=np.int64)
        first: Integers = groups[:, None] * self.group_rows + self.first_rows
        return first.reshape(self.problem.sequences, self.problem.kv_heads, -1)

    def copied_bytes(self, copy: TileCopy) -> Integers:
        """(sequences, kv_heads, tiles): bytes of bringing a tile's rows of Q on chip with asynchronous copies, once."""
        d = self.problem.head_dim
        return copy.bytes(self.first_stats * d, self.rows * d)

    def tile_bytes(self, elements_per_row: int, itemsize_bytes: int, elements_per_lane: int = 1) -> Integers:
        """(sequences, kv_heads, tiles): bytes of moving a tile's rows of Q or O, or with one element of lse, once."""
        first, elements = self.first_stats * elements_per_row, self.rows * elements_per_row
        return run_bytes(first, elements, itemsize_bytes, elements_per_lane)


def key_bytes(problem: PagedProblem, keys: Integers, Bc: int, copy: TileCopy | None = None) -> Integers:
    """Return bytes of loading K, or V, of `keys` keys of a head, in tiles of `Bc` from the start of a tile on.

    With `copy`, tiles are loaded by asynchronous copies; otherwise each lane loads an element at a time.
    """
    d, itemsize = problem.head_dim, problem.itemsize_bytes
    whole, rest = np.divmod(keys, Bc)

    def moved(elements: Any) -> Integers:
        return run_bytes(0, elements, itemsize) if copy is None else copy.bytes(0, elements)

    total: Integers = whole * moved(Bc * d) + moved(rest * d)
    return total


def of_every_warp(warps: int) -> int:
    """Return bytes of an element that all lanes of each warp read."""
    return warps * SECTOR_BYTES


def unsupported(problem: PagedProblem) -> str | None:
    """Return the reason why no variant supports the problem, or None."""
    if problem.head_dim > 256:
        return f"head_dim is {problem.head_dim}; tiles of more than 256 elements per row do not fit shared memory"
    for field, count in (("kv_heads", problem.kv_heads), ("batch", problem.sequences)):
        if count > MOST_BLOCKS_ALONG_Y:
            return f"{field} is {count}; a grid has at most {MOST_BLOCKS_ALONG_Y:,} blocks along y and z"
    if abs(problem.tau) > float(np.finfo(np.float32).max):
        return f"scale is {problem.tau:g}; float32, in which scores are computed, does not hold that"
    return None


def limits(problem: PagedProblem) -> Feature:
    """Return which keys a query sees: up to its own place, from the first of its window on.

    The last query is on the last key.
    """
    beyond = problem.q_len + max(problem.lengths)
    before = beyond if problem.window is None else min(problem.window, beyond)
    return Feature("Limits", "Band", (np.int32(before), np.int32(0)), ((FOLDER, "limits.cuh"),))


def window(problem: PagedProblem) -> Feature:
    """Return whether rows have a sliding window, a type that is no argument: `limits` has its length."""
    chosen = "NoWindow" if problem.window is None else "SlidingWindow"
    return Feature("Window", chosen, (), (("_paged", "window.cuh"),))


def pool(problem: PagedProblem) -> Feature:
    """Return how K and V are stored, a type that K and V themselves have as arguments (`pools`)."""
    chosen = "SameAsQ" if problem.kv_dtype is None else "ScaledE4m3"
    files: Files = (("_paged", "pools.cuh"),)
    if not problem.layout.is_dense:
        chosen, files = f"StridedPool<{chosen}, {rows_aligned_to(problem)}>", (*files, *STRIDED_POOLS)
    return Feature("Pool", chosen, (), files)


def rows_aligned_to(problem: PagedProblem) -> int | None:
    """Return the number of elements, at most 16 bytes, at whose multiples rows of K and V begin; None if dense."""
    return None if problem.layout.is_dense else problem.row_alignment_bytes // problem.kv_itemsize_bytes


def pools(problem: PagedProblem) -> tuple[Any, Any]:
    """Return the kernel's arguments K and V: each with its scales if it is stored in 8 bits, then with its strides."""
    stored: tuple[Any, Any] = ("K", "V") if problem.kv_dtype is None else (("K", "K_scale"), ("V", "V_scale"))
    if problem.layout.is_dense:
        return stored
    K, V = (tuple(map(np.int64, problem.tensor(name).strides[:-1])) for name in "KV")
    return (stored[0], K), (stored[1], V)


def tiles_of_pool(problem: PagedProblem) -> Files:
    """Return the CUDA files of tiles that are not stored as Q's, or not as one run, which follow those of splits.py."""
    e4m3 = () if problem.kv_dtype is None else (("_paged", "e4m3_tiles.cuh"),)
    return (*e4m3, *(() if problem.layout.is_dense else (("_paged", "strided_key_tiles.cuh"),)))


def key_copy(problem: PagedProblem) -> TileCopy:
    """Return how tiles of K and V are brought on chip by kernels of splits.py: rows are whole lines there."""
    d, aligned = problem.head_dim, rows_aligned_to(problem)
    if problem.kv_dtype is None:
        return tile_copy(d, aligned)
    at_once = 16 if d % 16 == 0 else 8
    return TileCopy(d, 1, min(at_once, aligned or at_once), 128 * blocks(d, 128), swizzled=True)


def scale_bytes(problem: PagedProblem, readers: int) -> int:
    """Return bytes of the scales if `readers` warps read one of K and one of V each; 0 without them."""
    return readers * of_every_warp(1) * len(problem.scales)


def in_numba(problem: PagedProblem, rows: int, keys: int) -> Any:
    """Return the device functions of the features, a `NumbaFeatures`, for tiles of `rows` rows and `keys` keys."""
    from variants._features.numba_features import numba_features

    terms = tuple(term.field for term in problem.score_terms)
    return numba_features(False, None, terms, problem.sinks, False, rows, keys, 128)


def row_tiles(problem: PagedProblem, Br: int) -> int:
    """Tiles of rows per group."""
    return int(blocks(problem.group * problem.q_len, Br))
