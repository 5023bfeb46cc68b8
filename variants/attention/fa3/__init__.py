"""FlashAttention-3: tiles, plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: J_i, the tiles of keys that row block i sees, in place of all tiles. A pack is
the query heads that share K and V, or as many of them as are a power of two: rows of all of them make a tile of rows,
so that K, V and the counter come once for all (PackGQA in FlashAttention-3's own code). Tiles are taken longest first.

A copy asks for each row of a box by itself, so where rows are no whole sectors, at head_dim 8, 24, 40, ..., every
second one touches a sector that the row before it has touched. Zeros beyond Q, K or V count as whole sectors of shared
memory (`zero_bytes`). lse goes out in eights: 8 rows of a tile are one request.

Slopes are read by each warp of the consumers once for each of its lanes' two rows and each tile of rows that sees some
key, sinks for each tile of rows. The heads of eight rows are in one sector.

Under documents and prefixes, where what rows see comes in arrays, the producer and each warp of the consumers read some
of these for each tile of rows: `limit_bytes`. Where what they see is no run, another launch lists tiles, and J_i are
those (`Visits`).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import (
    BAND_FEATURES,
    LAYOUT_FEATURE,
    SCORE_FEATURES,
    SPAN_FEATURES,
    VARLEN_FEATURE,
    Feature,
    arguments,
    has_spans,
    has_varlen,
    sequence_extents,
    sink_bytes,
    term_bytes,
)
from variants._hopper import (
    MULTIPROCESSORS,
    ROWS_PER_REQUEST,
    WARPGROUP_ROWS,
    WarpgroupTile,
    layout,
    limits,
    masked,
    packed_heads,
    packed_tensor_map,
    scores,
    sequences,
    tensor_bytes,
    tensor_map,
    turns,
    unsupported_on_hopper,
    warpgroup_tile_space,
    windowed,
    zero_bytes,
)
from variants._mma import LOG2_E
from variants._tiles import blocks
from variants._tiles.grids import L2_BYTES
from variants._tiles.registration import ROW_BY_ROW, Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, INT32_BYTES, Schedule
from variants._tiles.sectors import SECTOR_BYTES, Integers
from variants._tiles.visits import FEATURES as NO_RUNS
from variants._tiles.visits import Visits, cuda_listing, noted_bytes, tile_order
from variants.attention.fa3.tile import default_tile, head_tile, tiles_of_rows
from variants.attention.fa3.unpadded import claim_of_sequences

FOLDER = "attention/fa3"
NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""


def features_of(problem: Problem, tile: WarpgroupTile) -> tuple[Feature, ...]:
    """The kernel's features, in the order of its parameters."""
    order, sink = tile_order(problem, tile), features.sink(problem)
    return limits(problem), order, scores(problem), sink, sequences(problem, tiles_of_rows(problem, tile))


def chosen(problem: Problem, tile: WarpgroupTile) -> tuple[Any, ...]:
    """The kernel's last arguments: what rows see, and a tuple of all other features that are on."""
    first, *others = arguments(features_of(problem, tile))
    return first, tuple(each for each in others if each)


def cupy_kernels(problem: Problem, tile: WarpgroupTile) -> tuple[Any, ...]:
    """CUDA kernels of the algorithm and of the tile lists."""
    from variants._hopper.products import products
    from variants._hopper.rawkernel import hopper_kernel

    p, head_dim = problem, problem.head_dim
    begins = "=f" if windowed(p) and head_dim > 128 else "+f"  # the faster one, without spills
    O_apart = f"constexpr bool O_APART = {str(tile.keeps_O_apart(head_dim)).lower()};\n"
    text = O_apart + products(tile.Bc, head_dim, p.dtype, begins=begins)
    types = (*features_of(p, tile), turns(tile), layout(p))
    parts = tuple((FOLDER, f"{part}.cuh") for part in ("scoring", "own_tiles"))
    kernel = hopper_kernel(FOLDER, "fa3", head_dim, tile, p.dtype, types, text, parts)
    return (kernel, *cuda_listing(p, tile))


def numba_kernels(problem: Problem, tile: WarpgroupTile) -> tuple[Any, ...]:
    """The Numba kernel."""
    from variants._hopper.numba_limits import warpgroup_band
    from variants.attention.fa3.numba_kernel import fa3_kernel
    from variants.attention.fa3.numba_scoring import NumbaChoices

    limits_ = warpgroup_band(windowed(problem), masked(problem))
    chosen = NumbaChoices(tuple(term.field for term in problem.score_terms), problem.sinks, has_varlen(problem))
    return (fa3_kernel(problem.head_dim, tile, limits_, problem.dtype, chosen, problem.layout.is_dense),)


LANGUAGES = {
    "cupy": (cupy_kernels, (*SPAN_FEATURES, *NO_RUNS, *SCORE_FEATURES, LAYOUT_FEATURE, VARLEN_FEATURE)),
    "numba": (numba_kernels, (*BAND_FEATURES, *SCORE_FEATURES, LAYOUT_FEATURE, VARLEN_FEATURE)),
}
"""With what each takes."""


def plan(problem: Problem, kernels: Kernels, tile: WarpgroupTile | None = None) -> Plan:
    """One launch, behind that which lists tiles; `tile` is the problem's default unless given."""
    p, tile = problem, tile or default_tile(problem)
    # exp(tau s) = 2^(tau2 s) for tau > 0. The kernel gives Q the sign of tau, so that the largest s has most weight.
    # Under a cap it is the cap that has log2 e in it.
    unit = LOG2_E if p.softcap is None else 1.0
    tau2, sign = np.float32(abs(features.factor(p)) * unit if p.tau else 1.0), np.int32(np.sign(p.tau))
    fa3, *listing = kernels(p, tile)
    visits = Visits(Schedule(p, head_tile(p, tile)))
    packed = packed_heads(p)
    sequences_, rows = sequence_extents(p)
    packs, row_tiles = sequences_ * p.heads // packed, blocks(rows, tile.Br // packed)
    maps = (
        packed_tensor_map("Q", p, packed),
        tensor_map("K", p, tile.Bc),
        tensor_map("V", p, tile.Bc),
        packed_tensor_map("O", p, packed),
    )
    head_shift = (WARPGROUP_ROWS // packed).bit_length() - 1
    work = packs, p.group // packed, p.heads // packed, head_shift, row_tiles, packs_at_once(p)
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), tuple(np.int32(n) for n in work))
    launch = Launch(
        fa3,
        (min(tiles_of_rows(p, tile), MULTIPROCESSORS),),
        (tile.threads,),
        (*maps, "lse", *sizes, tau2, sign, *chosen(p, tile)),
        shared_bytes=tile.shared_bytes(p.head_dim),
    )
    buffers = (Buffer("lse", p.lse_shape, "float32"), *visits.buffers)
    return Plan(launches=(*visits.launches(listing), launch), buffers=buffers)


def packs_at_once(problem: Problem) -> int:
    """Packs of query heads that blocks work on at once, at least those that share K and V, of one sequence if unpadded.

    Without a mask, blocks need not mix the rows of several heads of an unpadded sequence: these take equally long.
    """
    p, packed, own = problem, packed_heads(problem), problem.sequences
    keys, heads = (p.kv_len, p.batch * p.heads) if own is None else (max(own.kv_lengths), p.heads)
    mixed = max(L2_BYTES // (2 * max(keys, 1) * p.head_dim * p.itemsize_bytes), 1)
    if own is not None and not p.mask_within.parts:
        mixed = 1
    return min(mixed * p.group, heads) // packed


def claim(problem: Problem, tile: WarpgroupTile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, tile, packed = problem, tile or default_tile(problem), packed_heads(problem)
    if has_varlen(p):
        return claim_of_sequences(p, tile)
    schedule = Schedule(p, head_tile(p, tile))
    o_bytes = tensor_bytes(p, "O", 0, p.q_len).sum()
    tiles_rows = len(schedule.first_rows) * schedule.tile.Br
    q_bytes = tensor_bytes(p, "Q", 0, p.q_len).sum() + p.batch * p.heads * zero_bytes(p.q_len, tiles_rows, p.head_dim)
    keys = np.minimum(tile.Bc, p.kv_len - schedule.first_keys)
    tile_bytes = sum(tensor_bytes(p, name, schedule.first_keys, keys) for name in "KV")
    tile_bytes = tile_bytes + 2 * zero_bytes(keys, tile.Bc, p.head_dim)
    # Of each pack, by the sequences that see differently.
    tile_bytes = np.repeat(tile_bytes, p.group // packed, axis=0).reshape(len(p.spans[0]), -1, len(keys))
    visits, warps = Visits(schedule), 4 * tile.consumers
    mask_and_keys, listed_bytes = visits.traffic(warps, 1, key_and_value_bytes=tile_bytes, others=1)
    counter_bytes = SECTOR_BYTES * p.batch * p.heads // packed * len(schedule.first_rows)
    read_bytes = q_bytes + mask_and_keys + counter_bytes
    if has_spans(p):
        read_bytes += limit_bytes(schedule, tile, visits.counts)
    # A warp reads what its lanes' two rows have of their heads: slopes, where some key is seen, and sinks.
    row_tiles = p.batch * p.heads // packed * len(schedule.first_rows)
    read_bytes += term_bytes(p, 2 * warps * seeing_tiles(schedule, visits.counts))
    read_bytes += sink_bytes(p, 2 * warps * row_tiles)
    return Traffic(int(read_bytes), int(o_bytes + lse_bytes(p) + counter_bytes) + listed_bytes)


def seeing_tiles(schedule: Schedule, visited: Integers) -> int:
    """Tiles of rows, of all packs, that see some key: of each list, for how many keys see `Visits.counts`."""
    p, packed = schedule.problem, packed_heads(schedule.problem)
    some_keys = np.broadcast_to(visited > 0, (p.batch, visited.shape[1], len(schedule.first_rows)))
    return int(some_keys.sum()) * (p.heads // packed // visited.shape[1])


def limit_bytes(schedule: Schedule, tile: WarpgroupTile, visited: Integers) -> int:
    """Bytes of reading what rows see from arrays, for each tile of rows of each pack.

    Its producer and all warps of its consumers read its first row's first key and its last one's end, where tiles of
    keys are not listed. Where there are some for it, `visited` (see `Visits.counts`), they read the two other ends, and
    each warp reads what its own rows see, eight rows at a time.
    """
    p, packed = schedule.problem, packed_heads(schedule.problem)
    warps, row_tiles = 4 * tile.consumers, len(schedule.first_rows)
    some_keys = np.broadcast_to(visited > 0, (p.batch, visited.shape[1], row_tiles))  # of each list
    packs_per_list = p.heads // packed // visited.shape[1]
    mine, head_rows = np.arange(WARPGROUP_ROWS * tile.consumers), WARPGROUP_ROWS // packed
    rows = schedule.first_rows[:, None] + mine // WARPGROUP_ROWS * head_rows + mine % head_rows
    sequences = np.arange(p.batch, dtype=np.int64)[:, None, None]
    touched = (sequences * p.q_len + np.minimum(rows, p.q_len - 1)) * INT32_BYTES // SECTOR_BYTES
    eights = np.sort(touched.reshape(p.batch, row_tiles, -1, ROWS_PER_REQUEST), axis=-1)
    distinct = 1 + (np.diff(eights, axis=-1) > 0).sum(axis=-1)
    sectors = 2 * int(((1 + warps + distinct.sum(axis=-1))[:, None] * some_keys).sum()) * packs_per_list
    if p.mask.is_run:
        sectors += 2 * (1 + warps) * p.batch * row_tiles * packs_per_list
    return SECTOR_BYTES * sectors


def lse_bytes(problem: Problem) -> int:
    """Bytes of writing lse: a request is 8 of a warpgroup's rows, which lie in one head or in several of its pack."""
    p, packed = problem, packed_heads(problem)
    head_rows = WARPGROUP_ROWS // packed
    tiles = np.arange(blocks(p.q_len, head_rows))[:, None, None] * head_rows
    heads = np.arange(p.batch * p.heads).reshape(-1, 1, packed, 1)
    rows = tiles + np.arange(head_rows)
    elements = np.where(rows < p.q_len, heads * p.q_len + rows, -1).reshape(-1, ROWS_PER_REQUEST)
    sectors = np.sort(np.where(elements >= 0, elements * FLOAT32_BYTES // SECTOR_BYTES, -1), axis=1)
    distinct = np.diff(sectors, axis=1, prepend=-1) > 0
    return SECTOR_BYTES * int(distinct.sum())


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, the default first. Where tiles of keys are listed, a tile has at most 128 rows."""
    noted = functools.partial(noted_bytes, problem)
    space = warpgroup_tile_space(problem.head_dim, default_tile(problem), noted)
    return space if problem.mask.is_run else [tile for tile in space if tile["Br"] <= 128]


def register(registry: Registry) -> None:
    """Add `fa3-cupy` and `fa3-numba`."""
    for language, (kernels, takes) in LANGUAGES.items():
        register_languages(
            registry,
            "fa3",
            "FlashAttention-3: a producer warp, TMA and wgmma; softmax overlapped with the products of another tile",
            {language: kernels},
            plan,
            claim,
            tiles,
            NUMERICS,
            takes=takes,
            supports=unsupported_on_hopper,
            tile_class=WarpgroupTile,
            invariant_to=ROW_BY_ROW,
        )
