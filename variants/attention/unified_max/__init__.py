"""FlashDecoding++'s unified maximum: plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: rows of the g query heads that share K and V are counted through, R = g N_q
rows in tiles of 16. A tile of rows meets the splits that hold the keys from the first to the last that any of its rows
sees, at least one. All copies are runs of consecutive elements (see _tiles/sectors.py), those of Q, K and V with up to
16 bytes per lane. Slopes are read by each of a block's 4 warps, those of 8 rows at a time, and sinks by one warp, those
of a tile's rows at a time.

Each tile of rows in which a row is computed again reads its Q, K, V and slopes once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, Variant
from variants import _features as features
from variants._features import arguments
from variants._mma import tile_copy
from variants._mma.splits import (
    BC,
    BR,
    PARTS,
    SPLITS,
    THREADS_PER_WARP,
    WARPS,
    blocks_per_sm,
    key_bytes,
    shared_bytes,
    slope_sectors,
    slots,
    split_sizes,
    splits_kernel,
    tiles,
)
from variants._tiles import blocks, unsupported
from variants._tiles.grids import beyond_y
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes
from variants.attention.unified_max.constant import LARGEST_LOG_WEIGHT, SMALLEST_LOG_SUM

MOST_ROW_TILES = 2**20
"""Each has a counter of four bytes in the module."""


def numerics(phi: float) -> Numerics:
    """Return where a kernel with this constant rounds. Budgets follow from the constant and from the range of it."""
    return Numerics(
        scores="float32",
        weights="problem",
        functions="__expf",
        tanh="accurate",
        sums="truncated",
        one_score=True,
        divides_last=True,
        constant_maximum=(float(np.float32(phi)), SMALLEST_LOG_SUM, LARGEST_LOG_WEIGHT),
    )


@dataclass(frozen=True)
class Work:
    """Tiles of rows of one key/value head, and the splits that each of them meets."""

    first_rows: Integers
    """First row of each tile, counted through the query heads that share K and V."""
    rows: Integers
    first_keys: Integers
    """First key that one of its rows sees."""
    end_keys: Integers
    """End of the keys that its rows see."""
    split: int
    """Keys per split."""
    of_all: int
    """Number of splits of all keys."""

    @property
    def first_splits(self) -> Integers:
        """First split of each tile."""
        return np.minimum(self.first_keys // self.split, self.of_all - 1)

    @property
    def splits(self) -> Integers:
        """Number of splits of each tile."""
        return np.where(self.end_keys > self.first_keys, (self.end_keys - 1) // self.split - self.first_splits + 1, 1)


def work(problem: Problem, split: int) -> Work:
    """Return how the rows and keys of a key/value head are divided."""
    p = problem
    firsts, ends = (each[0] for each in p.spans)  # a band is the same for all sequences
    first_rows = np.arange(0, p.group * p.q_len, BR, dtype=np.int64)
    rows = np.minimum(BR, p.group * p.q_len - first_rows)
    first_queries = first_rows % p.q_len
    last_queries = first_queries + rows - 1
    first_keys = firsts[np.where(last_queries >= p.q_len, 0, first_queries)]
    end_keys = ends[np.minimum(last_queries, p.q_len - 1)]
    return Work(first_rows, rows, first_keys, end_keys, split, int(blocks(p.kv_len, split)))


def cupy_unified_max(problem: Problem, split: int) -> Any:
    """The CUDA kernel for splits of so many keys."""
    p, chosen = problem, (features.limits(problem), features.scores(problem), features.sink(problem))
    sizes = split_sizes(p.head_dim, split) | {"ROW_TILES": _counters(p)}
    return splits_kernel("attention/unified_max", "unified_max", p.dtype, sizes, chosen, PARTS)


def numba_unified_max(problem: Problem, split: int) -> Any:
    """The Numba kernel for splits of so many keys."""
    from variants.attention.unified_max.numba_kernel import unified_max_kernel

    p, chosen, d = problem, features.in_numba(problem, BR, BC), problem.head_dim
    return unified_max_kernel(d, split, slots(d), p.dtype, blocks_per_sm(d), _counters(p), chosen)


KERNELS = {"cupy": cupy_unified_max, "numba": numba_unified_max}


def plan(
    problem: Problem,
    tile: Mapping[str, int] | None = None,
    *,
    phi: float = 0.0,
    kernel: Callable[[Problem, int], Any] = cupy_unified_max,
) -> Plan:
    """One launch; `tile` is the first of `tiles(problem)` unless given, and `phi` is what is subtracted from scores."""
    p, split = problem, _split(problem, tile)
    limits, scores, sink = features.limits(p), features.scores(p), features.sink(p)
    splits, row_tiles = int(blocks(p.kv_len, split)), _row_tiles(p)
    grid = (row_tiles // p.batch, splits, p.batch)
    lengths, tau = tuple(np.int32(each) for each in (p.q_len, p.kv_len, p.group)), np.float32(features.factor(p))
    unified = (np.float32(phi), np.float32(math.exp(SMALLEST_LOG_SUM)), np.float32(math.exp(LARGEST_LOG_WEIGHT)))
    args = ("Q", "K", "V", "O", "lse", "O_split", "l_split", *lengths, tau, unified)
    terms = arguments((limits, scores, sink))
    return Plan(
        launches=(
            Launch(kernel(p, split), grid, (THREADS_PER_WARP * WARPS,), (*args, *terms), shared_bytes(p.head_dim)),
        ),
        buffers=(
            Buffer("lse", p.lse_shape, "float32"),
            Buffer("O_split", (row_tiles, splits, BR, p.head_dim), "float32"),
            Buffer("l_split", (row_tiles, splits, BR), "float32"),
        ),
    )


def claim(problem: Problem, tile: Mapping[str, int] | None = None) -> Traffic:
    """The bytes above, at the `sectors` level, and those of computing all rows again."""
    p = problem
    of = work(p, _split(p, tile))
    d = p.head_dim
    heads = np.arange(p.batch * p.kv_heads_count, dtype=np.int64)[:, None]
    first_rows = heads * p.group * p.q_len + of.first_rows

    # Q is read once per split, K and V once.
    own_heads = heads % p.kv_heads_count
    Q_bytes = tile_copy(d).bytes(first_rows * d, of.rows * d)
    keys = 2 * key_bytes(d, heads * p.kv_len, of.first_keys, of.end_keys).sum()
    sectors = slope_sectors(p, own_heads, of.first_rows)
    read = (of.splits * Q_bytes).sum() + keys + features.term_bytes(p, WARPS * (of.splits * sectors).sum())
    again = Q_bytes.sum() + keys + features.term_bytes(p, WARPS * sectors.sum())
    if p.sinks:
        ends = np.stack((of.first_rows, of.first_rows + of.rows - 1))
        places = (own_heads * p.group + ends[:, None] // p.q_len) * FLOAT32_BYTES // SECTOR_BYTES
        read += SECTOR_BYTES * int((places[1] - places[0] + 1).sum())

    # Each split's O and l, which begin with a sector, are written, and read again; its counter is read and written.
    parts = len(heads) * of.splits
    O_bytes, l_bytes = (run_bytes(0, of.rows * each, FLOAT32_BYTES) for each in (d, 1))
    part_bytes = (parts * (O_bytes + l_bytes + SECTOR_BYTES)).sum()
    width = 4 if d % 4 == 0 else 2 if d % 2 == 0 else 1
    output = run_bytes(first_rows * d, np.broadcast_to(of.rows, first_rows.shape) * d, p.itemsize_bytes, width).sum()
    output += run_bytes(first_rows, np.broadcast_to(of.rows, first_rows.shape), FLOAT32_BYTES).sum()
    return Traffic(int(read + part_bytes), int(part_bytes + output), int(again))


def _row_tiles(problem: Problem) -> int:
    return int(problem.batch * problem.kv_heads_count * blocks(problem.group * problem.q_len, BR))


def _counters(problem: Problem) -> int:
    """Tiles of rows that have room for a counter: few sizes, so that one compilation serves many problems."""
    return 1 << max(10, (_row_tiles(problem) - 1).bit_length())


def _split(problem: Problem, tile: Mapping[str, int] | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    reason = unsupported(problem) or beyond_y(kv_len=(problem.kv_len, min(SPLITS)))
    if reason is None and (row_tiles := _row_tiles(problem)) > MOST_ROW_TILES:
        return f"it has {row_tiles:,} tiles of 16 rows; a counter for each of {MOST_ROW_TILES:,} is the most"
    return reason


def unified_max(name: str = "unified-max-cupy", phi: float = 0.0, language: str = "cupy") -> Variant:
    """Return the variant with the constant `phi`, for a registry: see README.md on how to choose it.

    `language`: of the kernel, one of `KERNELS`.
    """
    return Variant(
        name=name,
        algorithm="unified-max",
        backend=language,
        idea="FlashDecoding++, for few query rows: a constant in place of the maximum, unless a row leaves its range",
        plan=partial(plan, phi=phi, kernel=KERNELS[language]),
        supports=supports,
        claim=claim,
        tiles=tiles,
        takes=(*features.BAND_FEATURES, *features.SCORE_FEATURES),
        numerics=numerics(phi),
    )


def register(registry: Registry) -> None:
    """Add `unified-max-cupy` and `unified-max-numba`."""
    for language in KERNELS:
        registry.add(unified_max(f"unified-max-{language}", language=language))
