"""Keys that are split over thread blocks, on tensor cores: what splits.cuh has on chip, and how it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from variants._features import FOLDER, Feature, declarations, stored
from variants._mma import LINE_BYTES, LINE_ELEMENTS
from variants._tiles import blocks
from variants._tiles.rawkernel import raw_kernel
from variants._tiles.sectors import SECTOR_BYTES, Integers

OF_SPLITS = ("mma.cuh", "splits.cuh", "split_attention.cuh", "combine.cuh")
FILES = ((FOLDER, "limits.cuh"), (FOLDER, "scores.cuh"), *(("_mma", file) for file in OF_SPLITS))
"""CUDA files that are put before the kernels."""

BR, BC = 16, 16
"""Rows of queries per block, and keys that a warp takes at once: as many as one mma has."""
WARPS = 4
"""Per block of the kernel that has a split."""
SHARE, MOST_COMBINE_WARPS = 16, 16
"""Splits that a warp puts together at once, and most warps that do so for one row: see combine.cuh."""
THREADS_PER_WARP = 32
FLOAT32_BYTES = 4
RING_BYTES = 64 * 1024
"""Per block, for tiles of K and V on their way. To keep the memory of an H200 busy takes its 4.8 TB/s times about a
microsecond (Little's law), 36 KB for each of 132 multiprocessors: one block comes near, two or three have plenty."""
FEWEST_SLOTS, MOST_SLOTS = 3, 8
SPLITS = (512, 64, 128, 256, 1024, 2048)
"""Keys per split, the default first: long enough for what a block does once to be little, short enough for a few
sequences to fill a GPU."""


def splits_kernel(
    folder: str, name: str, dtype: str, sizes: Mapping[str, int], features: tuple[Feature, ...] = ()
) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu, before which splits.cuh and what belongs to it are put.

    `sizes`: its compile-time parameters.
    """
    files, using = declarations(features)
    common = (*stored(dtype), *dict.fromkeys((*files, *FILES)))
    return raw_kernel(folder, name, tuple(f"-D{name}={size}" for name, size in sizes.items()), common, using)


def split_sizes(head_dim: int, split: int) -> dict[str, int]:
    """The compile-time parameters of splits.cuh, and of kernels that it is put before."""
    sizes = {"D": head_dim, "SPLIT": split, "WARPS": WARPS}
    return sizes | {"SLOTS": slots(head_dim), "BLOCKS_PER_SM": blocks_per_sm(head_dim)}


def slots(head_dim: int) -> int:
    """Tiles of keys or values that a warp has room for."""
    return min(max(RING_BYTES // (WARPS * _slot_bytes(head_dim)), FEWEST_SLOTS), MOST_SLOTS)


def shared_bytes(head_dim: int) -> int:
    """Dynamic shared memory of a block: the warps' slots, Q, and l and m of its rows from each warp."""
    return (WARPS * slots(head_dim) + 1) * _slot_bytes(head_dim) + 2 * WARPS * BR * FLOAT32_BYTES


def blocks_per_sm(head_dim: int) -> int:
    """Blocks that share a multiprocessor, as slots and registers allow; a thread has head_dim / 2 for O alone."""
    return 3 if head_dim <= 128 else 2


def combine_warps(splits: int) -> int:
    """Warps that put a row's splits together, of which it has so many at most: one for each share, and at least two."""
    return min(MOST_COMBINE_WARPS, max(2, int(blocks(splits, SHARE))))


def combined_stat_bytes(number: Integers, stat: Integers, stride: int) -> Integers:
    """Bytes of reading l and m of one of a row's splits, which is that `number` of those that the row sees.

    They are element `stat` of their arrays, and those of the row's next split lie `stride` further. A warp asks for
    those of a share of splits at once: where they lie in the sector of those before them, they cost nothing.
    """
    per_sector = SECTOR_BYTES // FLOAT32_BYTES
    begins = (number % SHARE == 0) | (stat // per_sector != (stat - stride) // per_sector)
    return 2 * SECTOR_BYTES * begins


def _slot_bytes(head_dim: int) -> int:
    return int(BC * LINE_BYTES * blocks(head_dim, LINE_ELEMENTS))
