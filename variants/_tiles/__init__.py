"""Tiles: what the algorithms that use them have in common.

A tile is Br query rows or Bc keys of one head, in float32 in shared memory. tiles.cuh (CUDA) and numba_tiles.py (Numba)
load tiles, multiply them and store them; `sectors` counts the bytes that this moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness import PlanError, Problem

THREADS_X = 8
"""Number of threads that share a row of a tile: a quarter of a warp."""
THREADS_Y = 16
WARPS = THREADS_X * THREADS_Y // 32
"""Warps per thread block."""
SMALLEST_CAP, LARGEST_CAP = 2.0**-60, 2.0**60
SHARED_BYTES = 48 * 1024
"""Shared memory that a block can have on every GPU without opting in to more."""
MORE_SHARED_BYTES = 99 * 1024
"""Shared memory that a block can opt in to on every GPU since Ampere."""
MOST_BLOCKS_ALONG_Y = 65_535
"""Maximum thread blocks of a grid along y, and along z."""


@dataclass(frozen=True)
class Tile:
    """Sizes of tiles, named as in the papers. Raises `PlanError` if no kernel supports them."""

    Br: int
    """Query rows. One thread of the block handles the numbers stored per row."""
    Bc: int
    """Keys."""

    def __post_init__(self) -> None:
        if not (1 <= self.Br <= THREADS_X * THREADS_Y and self.Bc >= 1):
            raise PlanError(f"{self}: Br has to be 1 to {THREADS_X * THREADS_Y}, a thread per row, and Bc at least 1")


def default_tile(head_dim: int) -> Tile:
    """The tile of the algorithms that keep Q_i, one of K_j and V_j, and S or P on chip.

    (Br + Bc) (d + 4) + Br (Bc + 8) floats, rows padded as in tiles.cuh, fit `SHARED_BYTES`, and a thread's part of O is
    at most 32 registers.
    """
    if head_dim <= 64:
        return Tile(64, 32)
    if head_dim <= 128:
        return Tile(32, 32)
    return Tile(16, 16)


def blocks(extent: Any, size: int) -> Any:
    """Return how many blocks of `size` cover `extent`, a number or an array."""
    return -(-extent // size)


def unsupported(problem: Problem) -> str | None:
    """Return the reason why no variant with tiles supports the problem, or None."""
    widths = {"head_dim": problem.head_dim, "v_head_dim": problem.v_width}
    for field, width in widths.items():
        if width > 256:
            return f"{field} is {width}; tiles of more than 256 elements per row do not fit shared memory"
    for field in ("heads", "batch"):
        if getattr(problem, field) > MOST_BLOCKS_ALONG_Y:
            return (
                f"{field} is {getattr(problem, field)}; a grid has at most {MOST_BLOCKS_ALONG_Y:,} blocks along y and z"
            )
    if abs(problem.tau) > float(np.finfo(np.float32).max):
        return f"scale is {problem.tau:g}; float32, in which scores are computed, does not hold that"
    if problem.softcap is not None and not SMALLEST_CAP <= problem.softcap <= LARGEST_CAP:
        return f"softcap is {problem.softcap:g}; kernels here take 2^-60 to 2^60"
    return None


def grid(problem: Problem, blocks_per_head: int) -> tuple[int, int, int]:
    """Return the grid of a kernel with `blocks_per_head` blocks per query head."""
    return (blocks_per_head, problem.heads, problem.batch)


BLOCK = (THREADS_X, THREADS_Y)
"""The thread block of every kernel here."""
