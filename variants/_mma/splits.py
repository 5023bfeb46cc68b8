"""Keys that are split over thread blocks, on tensor cores: what splits.cuh has on chip, and how it is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from harness import Problem
from variants._features import FOLDER, Feature, declarations, stored
from variants._mma import LINE_BYTES, LINE_ELEMENTS, tile_copy
from variants._tiles import blocks
from variants._tiles.rawkernel import raw_kernel
from variants._tiles.sectors import SECTOR_BYTES, Integers
from variants._tiles.tile_copies import TileCopy

OF_SPLITS = ("mma.cuh", "splits.cuh", "split_attention.cuh", "runs_of_rows.cuh", "combine.cuh")
FILES = ((FOLDER, "limits.cuh"), (FOLDER, "scores.cuh"), *(("_mma", file) for file in OF_SPLITS))
"""CUDA files that are put before the kernels."""

BR, BC = 16, 16
"""Rows of queries per block, and keys that a warp takes at once: as many as one mma has."""
WARPS = 4
"""Per block of the kernel that has a split."""
SHARE, MOST_COMBINE_WARPS, MOST_COMBINE_ROWS = 16, 16, 4
"""Splits that a warp puts together at once, most warps that do so for one row, and most rows of a block: see
combine.cuh."""
THREADS_PER_WARP = 32
FLOAT32_BYTES = 4
RING_BYTES = 64 * 1024
"""Per block, for tiles of K and V on their way. To keep the memory of an H200 busy takes its 4.8 TB/s times about a
microsecond (Little's law), 36 KB for each of 132 multiprocessors: one block comes near, two or three have plenty."""
FEWEST_SLOTS, MOST_SLOTS = 3, 8
SPLITS = (512, 64, 128, 256, 1024, 2048)
"""Keys per split, the default first: long enough for what a block does once to be little, short enough for a few
sequences to fill a GPU."""
LONG, LONG_SPLIT = 32768, 1024
"""From so many keys on splits have that many unless others are asked for."""


PARTS = (("_mma", "parts.cuh"),)
"""Of kernels in which the last block puts together what several have of a row. They have sinks among their features."""
EQUAL_RUNS = (*PARTS, ("_mma", "equal_runs.cuh"), ("_mma", "segments.cuh"))
"""Of kernels in which each block takes an equal run of all keys: see equal_runs.py."""


def splits_kernel(
    folder: str,
    name: str,
    dtype: str,
    sizes: Mapping[str, int],
    features: tuple[Feature, ...] = (),
    parts: tuple[tuple[str, str], ...] = (),
) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu, before which splits.cuh and what belongs to it are put.

    `sizes`: its compile-time parameters; `parts`: further files, such as `PARTS`.
    """
    files, using = declarations(features)
    layout = ("_mma", "continues.cuh" if EQUAL_RUNS[-1] in parts else "ends_alone.cuh")
    common = (*stored(dtype), layout, *dict.fromkeys((*files, *FILES)))
    options = tuple(f"-D{name}={size}" for name, size in sizes.items())
    return raw_kernel(folder, name, options, common, using, parts=parts)


def has_few(splits: int) -> dict[str, int]:
    """A compile-time parameter of kernels that put at most so many splits of a row together: see combine.cuh."""
    return {"HAS_FEW_SPLITS": int(splits <= SHARE // 4)}


def split_sizes(head_dim: int, split: int, v_width: int | None = None) -> dict[str, int]:
    """The compile-time parameters of splits.cuh, and of kernels that it is put before.

    Rows of V and O have `v_width` elements, or `head_dim` if it is None.
    """
    sizes = {"D": head_dim, "DV": v_width or head_dim, "SPLIT": split, "WARPS": WARPS}
    longest = max(head_dim, v_width or head_dim)
    return sizes | {"SLOTS": slots(longest), "BLOCKS_PER_SM": blocks_per_sm(longest)}


def tiles(problem: Problem) -> list[dict[str, int]]:
    """How many keys a split may have, the default first. Br is no choice: it says where tiles of rows end.

    Twice as many where there are many keys: that takes 5 % off the time of 32,768, and 10 % more of 8,192 for a single
    sequence on an H200. Nothing else of the problem counts, so that bits do not depend on the rest of a batch.
    """
    default = LONG_SPLIT if problem.kv_len >= LONG else SPLITS[0]
    return [{"Br": BR, "split": split} for split in (default, *(other for other in SPLITS if other != default))]


def slots(head_dim: int) -> int:
    """Tiles of keys or values that a warp has room for. Here and below, `head_dim` is the length of the longest row."""
    return min(max(RING_BYTES // (WARPS * slot_bytes(head_dim)), FEWEST_SLOTS), MOST_SLOTS)


def shared_bytes(head_dim: int) -> int:
    """Dynamic shared memory of a block: the warps' slots, Q, and l and m of its rows from each warp."""
    return (WARPS * slots(head_dim) + 1) * slot_bytes(head_dim) + 2 * WARPS * BR * FLOAT32_BYTES


def blocks_per_sm(head_dim: int) -> int:
    """Blocks that share a multiprocessor, as slots and registers allow; a thread has head_dim / 2 for O alone."""
    return 3 if head_dim <= 128 else 2


def combine_block(splits: int, rows: int) -> tuple[int, int]:
    """Threads per row, and rows, of a block that puts the splits of rows together; at most `splits` of each of `rows`.

    A row has a warp for each share. If there is one share, a block has several rows.
    """
    warps = min(MOST_COMBINE_WARPS, max(1, int(blocks(splits, SHARE))))
    return THREADS_PER_WARP * warps, math.gcd(rows, MOST_COMBINE_ROWS) if warps == 1 else 1


def combined_stat_bytes(number: Integers, stat: Integers, stride: int) -> Integers:
    """Bytes of reading l and m of one of a row's splits, which is that `number` of those that the row sees.

    They are element `stat` of their arrays, and those of the row's next split lie `stride` further. A warp asks for
    those of a share of splits at once: where they lie in the sector of those before them, they cost nothing.
    """
    per_sector = SECTOR_BYTES // FLOAT32_BYTES
    begins = (number % SHARE == 0) | (stat // per_sector != (stat - stride) // per_sector)
    return 2 * SECTOR_BYTES * begins


def key_bytes(
    head_dim: int, head_key: Integers, first: Integers, end: Integers, copy: TileCopy | None = None
) -> Integers:
    """Bytes of K, or V, from key `first` of a head to before `end`; `head_key` counts the keys of the heads before.

    `copy`: how tiles are brought on chip, that of elements of 16 bits if None.

    A lane has the same place in its tile whether it copies or not, so what lies before `first` in a tile shifts none.
    """
    return strided_key_bytes(head_dim, head_key * head_dim, head_dim, first, end, copy or tile_copy(head_dim))


def strided_key_bytes(
    head_dim: int, begin: Integers, stride: int, first: Integers, end: Integers, copy: TileCopy
) -> Integers:
    """The same where key 0 of a head is at element `begin`, and the next ones `stride` elements further each."""
    d = head_dim
    end = np.maximum(first, end)
    # The rest of a tile that does not begin with `first`. Then whole tiles, which are whole sectors long, and whole
    # lines where a lane copies 16 bytes; and what is left.
    rest_end = np.minimum(end, blocks(first, BC) * BC)
    whole_end = np.maximum(rest_end, end // BC * BC)
    first_tile = first // BC * BC
    return (
        copy.bytes(begin + first_tile * stride, (rest_end - first_tile) * d, (first - first_tile) * d)
        + (whole_end - rest_end) // BC * copy.bytes(begin, BC * d)
        + copy.bytes(begin + whole_end * stride, (end - whole_end) * d)
    )


class GroupedRows(Protocol):
    """Rows that are counted through the query heads which share a key/value head."""

    @property
    def group(self) -> int:
        """Number of these heads."""

    @property
    def q_len(self) -> int:
        """Rows of each."""


def slope_sectors(
    problem: GroupedRows,
    own_heads: Integers,
    first_rows: Integers,
    requests: Sequence[tuple[int, int]] = ((0, 7), (8, 15)),
) -> Integers:
    """Sectors of an element per head, such as a slope, that are read for tiles that begin with these rows.

    Rows are counted through the query heads of key/value head `own_heads` of their sequence. `requests`: the first and
    the last of the tile's rows that a warp asks for at once; by default those of one warp.
    """
    reads = (head_sectors(problem, own_heads, first_rows + first, first_rows + last) for first, last in requests)
    sectors: Integers = sum(reads)
    return sectors


def head_sectors(problem: GroupedRows, own_heads: Integers, first_rows: Integers, last_rows: Integers) -> Integers:
    """Sectors of an element per head that a warp reads at once for the rows from the first to the last."""
    p, per_sector = problem, SECTOR_BYTES // FLOAT32_BYTES
    first, last = (
        (own_heads * p.group + np.minimum(rows // p.q_len, p.group - 1)) // per_sector
        for rows in (first_rows, last_rows)
    )
    sectors: Integers = last - first + 1
    return sectors


def slot_bytes(head_dim: int) -> int:
    """Shared memory of a slot, and of 16 rows of Q."""
    return int(BC * LINE_BYTES * blocks(head_dim, LINE_ELEMENTS))
