"""Which tile sizes a kernel here may be compiled for: what `--tile`, sweeps and tuning choose from."""

from __future__ import annotations

from collections.abc import Callable

from variants._tiles import SHARED_BYTES, THREADS_X, THREADS_Y, Tile, blocks
from variants._tiles.schedule import FLOAT32_BYTES

BR_CHOICES = (16, 32, 64, 128)
BC_CHOICES = (8, 16, 32, 64, 128)
"""Whole multiples of the 16 x 8 threads, so that none of them stands beyond the tile's edge."""
LARGEST_PART = 128
"""Elements of S and O together that a thread may hold: half of the 255 registers that it can have."""


def tile_space(
    head_dim: int,
    default: Tile,
    shared_floats: Callable[[int, Tile], int],
    spans: bool = False,
    shared_bytes: int = SHARED_BYTES,
) -> list[dict[str, int]]:
    """The default first, then every other tile that fits, Br and Bc ascending.

    `shared_floats(head_dim, tile)` is what a block of the algorithm has of shared memory, of which it may have so many
    bytes; with `spans`, what its rows see is kept there, too. The default's own sizes are choices too, combined with all others.
    """

    def fits(tile: Tile) -> bool:
        rows, keys = blocks(tile.Br, THREADS_Y), blocks(tile.Bc, THREADS_X)
        part = rows * (keys + blocks(head_dim, THREADS_X))
        kept = 2 * P_rows(tile) if spans else 0
        return part <= LARGEST_PART and (shared_floats(head_dim, tile) + kept) * FLOAT32_BYTES <= shared_bytes

    sizes = [Tile(Br, Bc) for Br in sorted({*BR_CHOICES, default.Br}) for Bc in sorted({*BC_CHOICES, default.Bc})]
    chosen = [default, *(tile for tile in sizes if tile != default and fits(tile))]
    return [{"Br": tile.Br, "Bc": tile.Bc} for tile in chosen]


def rows_floats(rows: int, head_dim: int) -> int:
    """A tile of Q, K, V or O in shared memory: LD of tiles.cuh per row."""
    step = step_over(head_dim)
    return rows * step * (head_dim // step | 1)


def step_over(head_dim: int) -> int:
    """How many elements of a row one load brings from shared memory: STEP of tiles.cuh."""
    return next(step for step in (4, 2, 1) if head_dim % step == 0)


def P_floats(tile: Tile) -> int:
    """A tile of S or P in shared memory, with the rows of threads at its edge: LP of tiles.cuh per row."""
    return P_rows(tile) * THREADS_X * (blocks(tile.Bc, THREADS_X) | 1)


def P_rows(tile: Tile) -> int:
    """Rows of P in shared memory."""
    return int(blocks(tile.Br, THREADS_Y)) * THREADS_Y
