"""Lean Attention: division of work, plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: rows of the g query heads that share K and V are counted through, R = g N_q
rows in tiles of 16. A tile of rows meets the keys from the first to the last that any of its rows sees. All copies are
runs of consecutive elements (see _tiles/sectors.py), those of Q, K and V with up to 16 bytes per lane. Slopes are read
by each of a block's 4 warps, those of 8 rows at a time, and sinks by one warp, those of a tile's rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, Variant
from variants import _features as features
from variants._features import arguments
from variants._mma import tile_copy
from variants._mma.splits import (
    BC,
    BR,
    PARTS,
    THREADS_PER_WARP,
    WARPS,
    key_bytes,
    shared_bytes,
    slope_sectors,
    split_sizes,
    splits_kernel,
)
from variants._tiles import blocks, unsupported
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes

LEAN_TILE = BC * WARPS
"""Keys of a lean tile: a tile for each warp of a block."""
FEWEST_LEAN_TILES = 8
"""Of a block's run, unless there are fewer in all: what a block does once is not to outweigh them."""
BLOCKS_PER_SM = 2
"""Three have more parts to put together, and take up to 8 % longer for few output tiles (H200, 2026-11-29)."""
MOST_BLOCKS = BLOCKS_PER_SM * 132
"""As many as an H100 SXM or H200 has at once. The kernel is right with any number."""
MOST_OUTPUT_TILES = 2**20
"""Each has a counter of four bytes in the module."""
NUMERICS = Numerics(
    scores="float32",
    weights="problem",
    functions="__expf",
    tanh="accurate",
    sums="truncated",
    one_score=True,
    divides_last=True,
)
"""A weight shrinks when its warp's maximum rises, when the warps of a block are put together, and when the parts of an
output tile are: each time by the distance to a larger score of another key, so at most once per key, as budgets
assume."""


@dataclass(frozen=True)
class Work:
    """Lean tiles of a problem, and how they are divided among blocks."""

    first_rows: Integers
    """First row of each output tile of a key/value head, counted through its query heads."""
    rows: Integers
    """Number of rows of each of these."""
    first_keys: Integers
    """First key that one of its rows sees."""
    end_keys: Integers
    """End of the keys that its rows see."""
    heads: int
    """Key/value heads of all sequences."""

    @property
    def lean_tiles(self) -> Integers:
        """Number of lean tiles of each output tile of a key/value head, at least one."""
        first = self.first_keys // LEAN_TILE
        return np.where(self.end_keys > self.first_keys, (self.end_keys - 1) // LEAN_TILE - first + 1, 1)

    @property
    def per_head(self) -> int:
        """Number of lean tiles of a key/value head."""
        return int(self.lean_tiles.sum())

    @property
    def total(self) -> int:
        """Number of lean tiles in all."""
        return self.heads * self.per_head

    @property
    def grid(self) -> int:
        """Number of blocks."""
        return min(MOST_BLOCKS, blocks(self.total, FEWEST_LEAN_TILES))

    @property
    def output_tiles(self) -> int:
        """Number of output tiles in all."""
        return self.heads * len(self.rows)


def work(problem: Problem) -> Work:
    """Return how the problem's work is divided."""
    p = problem
    firsts, ends = (each[0] for each in p.spans)  # a band is the same for all sequences
    first_rows = np.arange(0, p.group * p.q_len, BR, dtype=np.int64)
    rows = np.minimum(BR, p.group * p.q_len - first_rows)
    first_queries = first_rows % p.q_len
    last_queries = first_queries + rows - 1
    first_keys = firsts[np.where(last_queries >= p.q_len, 0, first_queries)]
    end_keys = ends[np.minimum(last_queries, p.q_len - 1)]
    return Work(first_rows, rows, first_keys, end_keys, p.batch * p.kv_heads_count)


def plan(problem: Problem) -> Plan:
    """One launch."""
    p, of = problem, work(problem)
    limits, scores, sink = features.limits(p), features.scores(p), features.sink(p)
    # Few sizes, so that one compilation serves many problems.
    room = 1 << max(10, (of.output_tiles - 1).bit_length())
    sizes = split_sizes(p.head_dim, LEAN_TILE) | {"BLOCKS_PER_SM": BLOCKS_PER_SM, "OUTPUT_TILES": room}
    lean = splits_kernel("attention/lean", "lean", p.dtype, sizes, (limits, scores, sink), PARTS)
    lengths = tuple(np.int32(each) for each in (p.q_len, p.kv_len, p.kv_heads_count, p.group))
    tiles, tau = (np.uint32(of.total), np.uint32(of.per_head)), np.float32(features.factor(p))
    args = ("Q", "K", "V", "O", "lse", "O_parts", "l_parts", "m_parts", *lengths, *tiles, tau)
    terms = arguments((limits, scores, sink))
    return Plan(
        launches=(Launch(lean, (of.grid,), (THREADS_PER_WARP * WARPS,), (*args, *terms), shared_bytes(p.head_dim)),),
        buffers=(
            Buffer("lse", p.lse_shape, "float32"),
            Buffer("O_parts", (2 * of.grid, BR, p.head_dim), "float32"),
            Buffer("l_parts", (2 * of.grid, BR), "float32"),
            Buffer("m_parts", (2 * of.grid, BR), "float32"),
        ),
    )


def claim(problem: Problem) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, of = problem, work(problem)
    d, copy = p.head_dim, tile_copy(p.head_dim)

    # Lean tiles are numbered through all heads. A segment is what a block has of an output tile.
    lean_tiles, total = np.tile(of.lean_tiles, of.heads), of.total
    ends = np.cumsum(lean_tiles)
    cuts = np.arange(of.grid, dtype=np.int64) * total // of.grid
    begin = np.unique(np.concatenate((ends - lean_tiles, cuts)))
    end = np.append(begin[1:], total)
    output_tile = np.searchsorted(ends, begin, side="right")
    head, number = np.divmod(output_tile, len(of.rows))
    rows, first = of.rows[number], head * p.group * p.q_len + of.first_rows[number]
    behind = begin - (ends - lean_tiles)[output_tile]

    # Read by each segment: Q, K and V, slopes.
    first_lean_tile = of.first_keys[number] // LEAN_TILE + behind
    first_key = np.maximum(first_lean_tile * LEAN_TILE, of.first_keys[number])
    end_key = np.minimum((first_lean_tile + end - begin) * LEAN_TILE, of.end_keys[number])
    read = copy.bytes(first * d, rows * d).sum() + 2 * key_bytes(d, head * p.kv_len, first_key, end_key).sum()
    own_head = head % p.kv_heads_count
    read += features.term_bytes(p, WARPS * slope_sectors(p, own_head, of.first_rows[number]).sum())
    if p.sinks:
        first_row, last_row = of.first_rows[number], of.first_rows[number] + rows - 1
        places = (own_head * p.group + np.stack((first_row, last_row)) // p.q_len) * FLOAT32_BYTES // SECTOR_BYTES
        read += SECTOR_BYTES * int((places[1] - places[0] + 1).sum())

    # Parts are written, and read again: each row's O, and l and m of the rows, which begin with a sector. Each part
    # increments a counter.
    is_whole = end - begin == lean_tiles[output_tile]
    part_rows = rows[~is_whole]
    O_bytes, l_bytes = (run_bytes(0, part_rows * each, FLOAT32_BYTES) for each in (d, 1))
    part_bytes = (O_bytes + 2 * l_bytes + SECTOR_BYTES).sum()
    # O of a whole tile is written element by element, of parts with a width of its own. Each tile counts once.
    width = 4 if d % 4 == 0 else 2 if d % 2 == 0 else 1
    O = [run_bytes(first * d, rows * d, p.itemsize_bytes, each) for each in (width, 1)]
    output = ((behind == 0) * (np.where(is_whole, O[1], O[0]) + run_bytes(first, rows, FLOAT32_BYTES))).sum()
    return Traffic(int(read + part_bytes), int(part_bytes + output))


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    reason = unsupported(problem)
    if reason is None and (of := work(problem)).output_tiles > MOST_OUTPUT_TILES:
        return f"it has {of.output_tiles:,} tiles of 16 rows; a counter for each of {MOST_OUTPUT_TILES:,} is the most"
    return reason


def register(registry: Registry) -> None:
    """Add `lean-cupy`."""
    registry.add(
        Variant(
            name="lean-cupy",
            algorithm="lean",
            backend="cupy",
            idea="Lean Attention, for few query rows: each block takes equally many keys; the last one combines the "
            "results",
            plan=plan,
            supports=supports,
            claim=claim,
            takes=(*features.BAND_FEATURES, *features.SCORE_FEATURES),
            invariant_to=(),  # the rest of the batch, and further rows, move the cuts between blocks
            numerics=NUMERICS,
        )
    )
