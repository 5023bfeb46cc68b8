"""Latent attention: what its kernels have in common, which split the keys of a sequence.

Query rows of all heads of a sequence lie one after the other and are counted through: row r of a sequence is query
r % q_len. Partial results have shape (sequences, splits of the longest one, rows of a sequence, ...).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, MlaProblem, Reshaped, Traffic
from variants._features import FOLDER, Feature
from variants._tiles import BLOCK, MOST_BLOCKS_ALONG_Y, WARPS, Tile, blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers

FLOAT32_BYTES = 4
PARTS = ("O_split", "l_split", "m_split")


def causal(problem: MlaProblem) -> Feature:
    """Return which keys a query sees: those up to its own place, where the last query is on the last key."""
    before = problem.q_len + max(problem.lengths, default=0)
    return Feature("Limits", "Band", (np.int32(before), np.int32(0)), ((FOLDER, "limits.cuh"),))


def rows_of_sequence(problem: MlaProblem) -> int:
    """Return the number of query rows of a sequence, over all heads."""
    return problem.heads * problem.q_len


def most_splits(problem: MlaProblem, split: int) -> int:
    """Return the number of splits of the longest sequence."""
    return int(blocks(max(problem.lengths), split))


def end_seen(problem: MlaProblem, lengths: Integers, query: Integers) -> Integers:
    """Return how many keys a query of a sequence sees."""
    seen: Integers = np.clip(query + lengths - problem.q_len + 1, 0, lengths)
    return seen


def ends_of_tiles(problem: MlaProblem, Br: int) -> tuple[Integers, Integers, Integers]:
    """Return the first row of each tile of rows, its number of rows, and (sequences, tiles) the keys that it sees."""
    rows = rows_of_sequence(problem)
    first = np.arange(0, rows, Br, dtype=np.int64)
    count = np.minimum(Br, rows - first)
    last_query = np.minimum(first % problem.q_len + count, problem.q_len) - 1
    return first, count, end_seen(problem, np.array(problem.lengths, np.int64)[:, None], last_query)


def part_buffers(problem: MlaProblem, splits: int) -> tuple[Buffer, ...]:
    """Return buffers of partial results of so many splits of each sequence."""
    stats = (problem.sequences, max(1, splits), rows_of_sequence(problem))
    shapes = ((*stats, problem.latent_dim), stats, stats)
    return tuple(Buffer(name, shape, "float32") for name, shape in zip(PARTS, shapes))


def combine_kernel(problem: MlaProblem, split: int) -> Any:
    """Return the CUDA kernel that puts the splits of each row together."""
    from variants._features import declarations, stored
    from variants._tiles.rawkernel import BELOW_TILES, SIZES, raw_kernel, tile_sizes

    d, tile = problem.latent_dim, Tile(16, 16)  # of tiles.cuh, which rows of O do not have here
    options = (f"-DD={d}", f"-DDV={d}", *tile_sizes(tile), *(f"-D{name}={size}" for name, size in SIZES.items()))
    files, using = declarations((causal(problem),))
    common = tuple(dict.fromkeys((*stored(problem.dtype), *BELOW_TILES, *files, ("_tiles", "tiles.cuh"))))
    return raw_kernel("_mla", "mla_combine", (*options, f"-DSPLIT={split}"), common, using, "combine.cu")


def combine_launch(kernel: Any, problem: MlaProblem, splits: int) -> Launch:
    """Return the launch that puts up to `splits` splits of each row together, a block per row."""
    p, rows = problem, rows_of_sequence(problem)
    O, lse = Reshaped("O", (p.sequences, rows, p.latent_dim)), Reshaped("lse", (p.sequences, rows))
    args = (*PARTS, "lengths", O, lse, np.int32(p.q_len), np.int32(splits), causal(p).argument)
    return Launch(kernel, (rows, p.sequences), BLOCK, args)


def combine_bytes(problem: MlaProblem, split: int) -> Traffic:
    """Return the bytes of that launch: each of its 4 warps asks for the length, and for l and m of each split."""
    p, of_every_warp = problem, WARPS * SECTOR_BYTES
    ends = end_seen(p, np.array(p.lengths, np.int64)[:, None], np.arange(p.q_len))
    read = of_every_warp + blocks(ends, split) * (p.latent_dim * FLOAT32_BYTES + 2 * of_every_warp)
    output_bytes = p.latent_dim * p.itemsize_bytes + SECTOR_BYTES
    return Traffic(int(p.heads * read.sum()), p.sequences * rows_of_sequence(p) * output_bytes)


def unsupported(problem: MlaProblem, width_unit: int, fewest_keys: int) -> str | None:
    """Return why no kernel with parts of rows in multiples of `width_unit` takes the problem, or None."""
    p = problem
    for field in ("latent_dim", "rope_dim"):
        if getattr(p, field) % width_unit:
            return f"{field} is {getattr(p, field)}; it has to be a multiple of {width_unit}"
    for what, count in (("batch", p.sequences), ("splits", most_splits(p, fewest_keys))):
        if count > MOST_BLOCKS_ALONG_Y:
            return f"it has {count:,} {what}; a grid has at most {MOST_BLOCKS_ALONG_Y:,} blocks along y and z"
    if abs(p.tau) > float(np.finfo(np.float32).max):
        return f"scale is {p.tau:g}; float32, in which scores are computed, does not hold that"
    return None
