"""Lean Attention: division of work, plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: rows of the g query heads that share K and V are counted through, R = g N_q
rows in tiles of 16. A tile of rows meets the keys from the first to the last that any of its rows sees. All copies are
runs of consecutive elements (see _tiles/sectors.py), those of Q, K and V with up to 16 bytes per lane. Slopes are read
by each of a block's 4 warps, those of 8 rows at a time, and sinks by one warp, those of a tile's rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, Variant
from variants import _features as features
from variants._features import arguments
from variants._mma import tile_copy
from variants._mma.equal_runs import (
    LEAN_TILE,
    PART_BUFFERS,
    Segments,
    blocks_for,
    part_buffers,
    places_of,
    shared_bytes,
    sizes_for,
    too_many,
)
from variants._mma.splits import (
    BC,
    BR,
    EQUAL_RUNS,
    THREADS_PER_WARP,
    WARPS,
    head_sectors,
    key_bytes,
    slope_sectors,
    slots,
    splits_kernel,
)
from variants._tiles import unsupported
from variants._tiles.sectors import Integers

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
    def places_per_head(self) -> int:
        """Number of places of a key/value head."""
        return int(places_of(self.lean_tiles).sum())

    @property
    def places(self) -> int:
        """Number of places in all."""
        return self.heads * self.places_per_head

    @property
    def grid(self) -> int:
        """Number of blocks."""
        return blocks_for(np.tile(self.lean_tiles, self.heads))

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


def cupy_lean(problem: Problem) -> Any:
    """The CUDA kernel."""
    p = problem
    chosen = features.limits(p), features.scores(p), features.sink(p)
    sizes = sizes_for(p.head_dim, work(p).output_tiles)
    return splits_kernel("attention/lean", "lean", p.dtype, sizes, chosen, EQUAL_RUNS)


def numba_lean(problem: Problem) -> Any:
    """The Numba kernel."""
    from variants.attention.lean.numba_kernel import lean_kernel

    p, sizes = problem, sizes_for(problem.head_dim, work(problem).output_tiles)
    chosen = features.in_numba(p, BR, BC)
    return lean_kernel(p.head_dim, slots(p.head_dim), p.dtype, sizes["BLOCKS_PER_SM"], sizes["OUTPUT_TILES"], chosen)


KERNELS = {"cupy": cupy_lean, "numba": numba_lean}


def plan(problem: Problem, kernel: Callable[[Problem], Any] = cupy_lean) -> Plan:
    """One launch."""
    p, of = problem, work(problem)
    limits, scores, sink = features.limits(p), features.scores(p), features.sink(p)
    lengths = tuple(np.int32(each) for each in (p.q_len, p.kv_len, p.kv_heads_count, p.group))
    places, tau = (np.uint32(of.places), np.uint32(of.places_per_head)), np.float32(features.factor(p))
    args = ("Q", "K", "V", "O", "lse", *PART_BUFFERS, *lengths, *places, tau)
    terms = arguments((limits, scores, sink))
    return Plan(
        launches=(
            Launch(kernel(p), (of.grid,), (THREADS_PER_WARP * WARPS,), (*args, *terms), shared_bytes(p.head_dim)),
        ),
        buffers=(Buffer("lse", p.lse_shape, "float32"), *part_buffers(of.grid, p.head_dim)),
    )


def claim(problem: Problem) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, of = problem, work(problem)
    d, copy = p.head_dim, tile_copy(p.head_dim)

    segments = Segments.of(np.tile(of.lean_tiles, of.heads))
    head, number = np.divmod(segments.output_tile, len(of.rows))
    rows, first = of.rows[number], head * p.group * p.q_len + of.first_rows[number]

    # Read by each segment: Q, K and V, slopes, sinks.
    first_lean_tile = of.first_keys[number] // LEAN_TILE + segments.behind
    first_key = np.maximum(first_lean_tile * LEAN_TILE, of.first_keys[number])
    end_key = np.minimum((first_lean_tile + segments.lean_tiles) * LEAN_TILE, of.end_keys[number])
    read = copy.bytes(first * d, rows * d).sum() + 2 * key_bytes(d, head * p.kv_len, first_key, end_key).sum()
    own_head = head % p.kv_heads_count
    read += features.term_bytes(p, WARPS * slope_sectors(p, own_head, of.first_rows[number]).sum())
    first_row = of.first_rows[number]
    read += features.sink_bytes(p, head_sectors(p, own_head, first_row, first_row + rows - 1).sum())

    part_bytes = segments.part_bytes(rows, d)
    return Traffic(int(read) + part_bytes, part_bytes + segments.output_bytes(first, rows, d, p.itemsize_bytes))


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    return unsupported(problem) or too_many(work(problem).output_tiles)


def register(registry: Registry) -> None:
    """Add `lean-cupy` and `lean-numba`."""
    for language, kernel in KERNELS.items():
        registry.add(
            Variant(
                name=f"lean-{language}",
                algorithm="lean",
                backend=language,
                idea="Lean Attention, for few query rows: each block takes equally many keys; the last one combines "
                "the results",
                plan=partial(plan, kernel=kernel),
                supports=supports,
                claim=claim,
                takes=(*features.BAND_FEATURES, *features.SCORE_FEATURES),
                invariant_to=(),  # the rest of the batch, and further rows, move the cuts between blocks
                numerics=NUMERICS,
            )
        )
