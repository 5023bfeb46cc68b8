"""Equal runs of keys for blocks, as Lean Attention divides them: the numbers of equal_runs.cuh.

Sanovar, Bharadwaj, St. Amant, Rühle and Rajmohan 2024, arXiv 2405.10480. An output tile is 16 rows that share K and V,
its keys are lean tiles. They lie in a row, with places before those of each output tile that are left empty, and each
block takes an equal run of the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness import Buffer
from variants._mma import LINE_ELEMENTS, splits
from variants._mma.splits import BC, BR, WARPS, split_sizes
from variants._tiles import blocks
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes

LEAN_TILE = BC * WARPS
"""Keys of a lean tile: a tile for each warp of a block."""
FEWEST_LEAN_TILES = 8
"""Of a block's run by default, unless there are fewer in all: what a block does once is not to outweigh them."""
START_TILES = 5
"""Lean tiles that beginning and ending an output tile counts as. With fewer, blocks that have parts of several output
tiles finish last; on an H200, 2 are slower by up to 3 % for sequences of very different lengths (2026-12-01)."""
BLOCKS_PER_SM = 2
"""Three have more parts to put together, and take up to 8 % longer for few output tiles (H200, 2026-11-29)."""
LONGEST_CONTINUED = 128
MOST_BLOCKS = BLOCKS_PER_SM * 132
"""As many as an H100 SXM or H200 has at once. The kernels are right with any number."""
SPARED = 16
"""At most one of so many blocks is left out for the others to have whole output tiles. On an H200, 256 blocks with
whole ones in place of 264 take 1 to 3 % less time, but up to 2.4 % more if each has a part of one (2026-12-01)."""
MOST_OUTPUT_TILES = 2**20
"""Each has a counter of four bytes in the module."""
PART_BUFFERS = ("O_parts", "l_parts", "m_parts")


def places_of(lean_tiles: Integers) -> Integers:
    """Return how many places output tiles of so many lean tiles have in the row that is divided."""
    return lean_tiles + START_TILES


def blocks_for(lean_tiles: Integers, fewest: int = FEWEST_LEAN_TILES) -> int:
    """Return the number of blocks for output tiles of so many lean tiles: each block has about `fewest` or more.

    Each has at least one lean tile. If output tiles are equal, each block has as many whole ones, unless that leaves
    out many blocks: nothing is computed while a block ends a part.
    """
    places = int(places_of(lean_tiles).sum())
    most = int(min(MOST_BLOCKS, blocks(int(lean_tiles.sum()), fewest), places // (START_TILES + 1)))
    tiles_of_each = int(blocks(len(lean_tiles), most))
    fewer, left = divmod(len(lean_tiles), tiles_of_each)
    is_near = left == 0 and SPARED * fewer >= (SPARED - 1) * most
    return fewer if is_near and bool((lean_tiles == lean_tiles[0]).all()) else most


def sizes_for(head_dim: int, output_tiles: int) -> dict[str, int]:
    """Return compile-time parameters: few values, so that one compilation serves many problems."""
    return {
        **split_sizes(head_dim, LEAN_TILE),
        "BLOCKS_PER_SM": BLOCKS_PER_SM,
        "OUTPUT_TILES": 1 << max(10, (output_tiles - 1).bit_length()),
    }


def continues(head_dim: int) -> bool:
    """Return whether the next keys arrive while a block ends with these: shared memory has no room for longer rows."""
    return head_dim <= LONGEST_CONTINUED


def shared_bytes(head_dim: int) -> int:
    """Return the dynamic shared memory of a block.

    If it continues, rows of Q and the warps' O, which are followed by weights of all parts, have memory of their own.
    """
    if not continues(head_dim):
        return splits.shared_bytes(head_dim)
    O_bytes = WARPS * BR * LINE_ELEMENTS * int(blocks(head_dim, LINE_ELEMENTS)) * FLOAT32_BYTES
    weights_bytes = 2 * MOST_BLOCKS * BR * FLOAT32_BYTES
    return splits.shared_bytes(head_dim) + splits.slot_bytes(head_dim) + max(O_bytes, weights_bytes)


def part_buffers(grid: int, head_dim: int) -> tuple[Buffer, ...]:
    """Return the buffers of parts: each block has at most two, 16 rows of O, l and m each."""
    shapes = (2 * grid, BR, head_dim), (2 * grid, BR), (2 * grid, BR)
    return tuple(Buffer(name, shape, "float32") for name, shape in zip(PART_BUFFERS, shapes))


def too_many(output_tiles: int) -> str | None:
    """Return why there are too many output tiles, or None."""
    if output_tiles <= MOST_OUTPUT_TILES:
        return None
    return f"it has {output_tiles:,} tiles of 16 rows; a counter for each of {MOST_OUTPUT_TILES:,} is the most"


@dataclass(frozen=True)
class Segments:
    """What blocks have of output tiles, in the order of lean tiles."""

    block: Integers
    """The block."""
    output_tile: Integers
    """The output tile, counted through all of them."""
    behind: Integers
    """Its lean tiles before the segment."""
    lean_tiles: Integers
    """Lean tiles of the segment."""
    is_whole: Integers
    """Whether these are all of the output tile."""

    @classmethod
    def of(cls, lean_tiles: Integers, fewest: int = FEWEST_LEAN_TILES) -> Segments:
        """Divide output tiles of so many lean tiles each, as `blocks_for`."""
        ends = np.cumsum(places_of(lean_tiles))
        firsts, total, grid = ends - lean_tiles, int(ends[-1]), blocks_for(lean_tiles, fewest)
        cuts = np.arange(grid, dtype=np.int64) * total // grid
        # A run that begins with empty places has its first lean tile behind them.
        begin = np.unique(np.concatenate((firsts, np.maximum(cuts, firsts[np.searchsorted(ends, cuts, side="right")]))))
        output_tile = np.searchsorted(ends, begin, side="right")
        own = np.minimum(np.append(begin[1:], total), ends[output_tile]) - begin
        block = np.searchsorted(cuts, begin, side="right") - 1
        return cls(block, output_tile, begin - firsts[output_tile], own, own == lean_tiles[output_tile])

    def part_bytes(self, rows: Integers, head_dim: int) -> int:
        """Return the bytes that are written of parts, and read again; `rows` are those of each segment.

        Each row's O, and l and m of the rows, which begin with a sector. Each part increments a counter.
        """
        of_parts = rows[~self.is_whole]
        O, stat = (run_bytes(0, of_parts * each, FLOAT32_BYTES) for each in (head_dim, 1))
        return int((O + 2 * stat + SECTOR_BYTES).sum())

    def output_bytes(self, first: Integers, rows: Integers, head_dim: int, itemsize_bytes: int) -> int:
        """Return the bytes of writing O and lse; `first` is each segment's first row, counted through O.

        O of a whole tile is written element by element, of parts with a width of its own. Each tile counts once.
        """
        d, width = head_dim, 4 if head_dim % 4 == 0 else 2 if head_dim % 2 == 0 else 1
        of_parts, whole = (run_bytes(first * d, rows * d, itemsize_bytes, each) for each in (width, 1))
        stats = run_bytes(first, rows, FLOAT32_BYTES)
        return int(((self.behind == 0) * (np.where(self.is_whole, whole, of_parts) + stats)).sum())
