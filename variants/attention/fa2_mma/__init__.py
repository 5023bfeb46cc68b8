"""FlashAttention-2 on tensor cores: tiles, plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: J_i, the tiles of keys that row block i sees, in place of all tiles, and 8 N_q
where the mask is no band. A lane copies 16 bytes at once, or as many as rows keep aligned, hence 512 bytes per request
where head_dim is a multiple of 8; a run that does not start at a sector's first byte touches one sector more, and where
rows are an odd number of 16 bytes, copies cost more than there are sectors (_tiles/tile_copies.py). L goes 4 bytes per
lane. The head's slope and its sink, where it has them, are read by each warp of a block: T_r warps x 32 bytes each.

Where what a row sees is no run of keys (masks of blocks, FlashMask), a launch of its own lists the tiles that a block
of rows visits, so that copies know what comes next, and J_i leaves out the others; what that costs says
_tiles/visits.py. A tile whose keys all rows see is worked on as without that mask. The Numba kernel takes runs alone.

Blocks start with the last rows of several heads, which see most keys where causal: _tiles/grids.py says of how many.
Where the mask is no band, a launch of its own finds those that visit most tiles of keys, and each warp reads which
block it owns, 32 bytes: _tiles/longest_first.py. Under a window the first warps of a block alone see its first tile of
keys, and others alone its last one: it visits these two at once.

A cap's tangents are tanh.approx, one per score; ALiBi is an addition and a fused multiply-add per score, after which
scores are no longer scaled with the maximum's subtraction. Sinks come in once per row, at the end. Dropout
is two calls of Philox for the 32 weights that a lane has of 32 rows and 32 keys; a byte for each stays in registers, of
which the sign becomes a mask of the weight as it is packed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import (
    Feature,
    arguments,
    band,
    declarations,
    has_spans,
    has_varlen,
    sequence_extents,
    sink_bytes,
    start_bytes,
    stored,
    term_bytes,
)
from variants._mma import LOG2_E, MmaTile, mma_tile_space, tile_copy, unsupported_on_tensor_cores
from variants._tiles import blocks
from variants._tiles.grids import beyond_y, grid_across, grid_side_by_side
from variants._tiles.longest_first import LongestFirst, cuda_ordering, numba_ordering, row_order
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule, schedules
from variants._tiles.visits import FEATURES as LISTED_FEATURES
from variants._tiles.visits import Visits, cuda_listing, noted_bytes, tile_order
from variants.attention.fa2_mma.registers import ROOMY_PART, computed_again, forms, kept_registers

FOLDER = "attention/fa2_mma"
DROPOUT_FRAGMENTS = (features.FOLDER, "dropout_fragments.cuh")
NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""


def default_tile(head_dim: int, crowded: bool = False) -> MmaTile:
    """The fastest of `tiles` on an H200 at head_dim 64, 80, 96, 128, 192 and 256, long sequences, bfloat16.

    A warp owns 32 rows, so that each fragment of K and V that it loads is multiplied twice; beyond 128 elements per row
    O would not leave room for S, and it owns 16. Where registers are `crowded`, tiles have fewer keys. An A100 has 163
    KiB of shared memory for its blocks: there, `--tile Br=128,Bc=48,warps=4,stages=2` at 128 elements, so that two fit,
    and `--tile Br=128,Bc=32,warps=8,stages=2` beyond 192, where none does.
    """
    if head_dim <= 64:
        return MmaTile(Br=128, Bc=64 if crowded else 96, warps=4, stages=2)
    if head_dim <= 96:
        return MmaTile(Br=128, Bc=32 if crowded else 64, warps=4, stages=2)
    if head_dim <= 128:
        return MmaTile(Br=128, Bc=32 if crowded else 48 if head_dim <= 112 else 64, warps=4, stages=2)
    return MmaTile(Br=128, Bc=32 if crowded else 64, warps=8, stages=2)


def tile_of(problem: Problem) -> MmaTile:
    """What the problem is computed with unless another tile is asked for.

    Where a thread keeps more than S, O and Q take, the usual tile would spill: what rows see, where their sequence
    begins, or what scores become, see `ROOMY_PART`; what is noted of a tile (blocks of a mask are mostly whole numbers
    of the smaller tiles besides), or all that scores may become, beside wide rows. Which weights drop out is drawn for
    32 keys at a time, and 64 are the most that leave room for that. See also registers.py.
    """
    has_all_scores = problem.score_features == features.SCORE_FEATURES
    width, changed = longest_row(problem), set(problem.score_features) - {"sinks"}
    crowded = _is_crowded_by_notes(problem) or (width > 64 and has_all_scores)
    tile = default_tile(width, crowded)
    if crowded:
        return tile
    if problem.dropout:
        return replace(tile, Bc=64)
    grows = has_spans(problem) or has_varlen(problem) or problem.v_width > problem.head_dim
    return _roomy(tile, width) if grows or changed else tile


def _is_crowded_by_notes(problem: Problem) -> bool:
    """Whether what is noted of a tile leaves no room for the usual one.

    It does leave it where there are blocks of a mask and nothing else, beside rows of more than 112 elements.
    """
    noted = not problem.mask.is_run
    alone = problem.flashmask is None and not problem.compiled_features and not has_spans(problem)
    return noted and not (alone and problem.head_dim > 112)


def longest_row(problem: Problem) -> int:
    """Elements of the longest rows: tiles and registers are chosen as if those of Q, K, V and O had as many."""
    return max(problem.head_dim, problem.v_width)


def numba_tile_of(problem: Problem) -> MmaTile:
    """The default tile of the Numba kernel, which always needs the registers that `ROOMY_PART` leaves free."""
    tile = tile_of(problem)
    return tile if problem.dropout else _roomy(tile, longest_row(problem))


def _roomy(tile: MmaTile, head_dim: int) -> MmaTile:
    return replace(tile, Bc=48) if tile.part(head_dim) > ROOMY_PART else tile


def features_of(problem: Problem, tile: MmaTile) -> tuple[Feature, ...]:
    """The kernel's features, in the order of its parameters."""
    p = problem
    limits, orders = features.limits(p), (row_order(p, tile), tile_order(p, tile))
    scores = features.scores(p, unit_of(p))
    of_scores = scores, features.sink(p), features.dropout(p, keys=tile.Bc)
    return limits, *orders, *of_scores, features.sequences(p), features.layout(p)


def unit_of(problem: Problem) -> float:
    """The factor of scores: log2 e, as their exponentials are powers of two, unless there are terms that need none."""
    return LOG2_E if set(problem.score_features) <= set(features.SCORE_FEATURES) else 1.0


def ends_at_once(problem: Problem) -> bool:
    """Whether a block may visit its first tile of keys and its last at once, which different warps see.

    Under a window. Where scores change, or weights drop out, there are no registers for it.
    """
    is_window = problem.mask_within.is_band and bool(max(band(problem)) < problem.q_len + problem.kv_len)
    more = set(problem.compiled_features) - {"sinks", features.V_WIDTH_FEATURE}
    return is_window and not more


def visits_type(problem: Problem) -> str:
    """The type in visits.cuh: in which order a block visits tiles of keys."""
    if not problem.mask.is_run:
        return "LastListedFirst<TileOrder>"
    return "NearestFirst" if problem.alibi else "EndsAtOnce" if ends_at_once(problem) else "InOrder"


def cupy_kernels(problem: Problem, tile: MmaTile) -> tuple[Any, ...]:
    """CUDA kernels of the algorithm, of the block order and of the tile lists."""
    from variants._mma import rawkernel
    from variants._tiles.rawkernel import raw_kernel

    p = problem
    at_once = ends_at_once(p)
    sizes = {**rawkernel.tile_sizes(p.head_dim, tile), "DV": p.v_width, "KEPT_REGISTERS": kept_registers(p, at_once)}
    files, using = declarations(features_of(p, tile))
    strided = () if p.layout.is_dense else rawkernel.STRIDED
    common = (*stored(p.dtype), *files, DROPOUT_FRAGMENTS, *rawkernel.COMMON_WITH_TILES, *strided)
    own = tuple((FOLDER, f"{name}.cuh") for name in ("registers", "visits", "seen", "scoring", "products", "output"))
    using += f"using Visits = {visits_type(p)};\nusing Again = {computed_again(p, at_once)};\n"
    using += f"using Forms = {forms(p, tile, at_once)};\n"
    options = tuple(f"-D{name}={size}" for name, size in sizes.items())
    kernel = raw_kernel(FOLDER, "fa2_mma", options, (*common, *own), using)
    return (kernel, *cuda_ordering(p, tile), *cuda_listing(p, tile))


def numba_kernels(problem: Problem, tile: MmaTile) -> tuple[Any, ...]:
    """Numba kernels of the algorithm and of the block order."""
    from variants.attention.fa2_mma.numba_kernel import fa2_mma_kernel

    p, chosen = problem, features.in_numba(problem, tile.Br, tile.Bc, threads=32 * tile.warps)
    terms = tuple(term.field for term in p.score_terms)
    aligned = features.rows_aligned_to(p)
    kernel = fa2_mma_kernel(p.head_dim, p.v_width, tile, p.dtype, has_spans(p), terms, chosen, aligned)
    return (kernel, *numba_ordering(p, tile))


TAKES = (
    *features.SPAN_FEATURES,
    *features.SCORE_FEATURES,
    features.DROPOUT_FEATURE,
    features.LAYOUT_FEATURE,
    features.VARLEN_FEATURE,
    features.V_WIDTH_FEATURE,
)
LANGUAGES = {
    "cupy": (cupy_kernels, (*TAKES, *LISTED_FEATURES), tile_of),
    "numba": (numba_kernels, TAKES, numba_tile_of),
}
"""With what each takes, and its usual tile."""
TileOf = Callable[[Problem], MmaTile]


def plan(problem: Problem, kernels: Kernels, tile: MmaTile | None = None, tile_of: TileOf = tile_of) -> Plan:
    """One launch, behind that which lists tiles, or puts blocks in order; `tile` is `tile_of(problem)` unless given."""
    p, tile = problem, tile or tile_of(problem)
    fa2_mma, *ahead = kernels(p, tile)
    schedule = Schedule(p, tile)  # if sequences are unpadded, only what follows from the mask is asked of it
    visits, order = Visits(schedule), LongestFirst(schedule)
    # exp(tau s) = 2^(tau2 s) for tau > 0. The kernel gives Q the sign of tau, so that the largest s has most weight.
    # Under a cap it is the cap that has log2 e in it.
    unit = unit_of(p) if p.softcap is None else 1.0
    tau2, sign = np.float32(abs(features.factor(p)) * unit if p.tau else 1.0), np.int32(np.sign(p.tau))
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.heads), np.int32(p.group), tau2, sign)
    kv_bytes = tile.Bc * (p.head_dim + p.v_width) * p.itemsize_bytes // p.group  # which a group of heads shares
    # What rows see is read by the sequence, which is the grid's z then.
    if has_varlen(p):
        grid = grid_across(p, blocks(sequence_extents(p)[1], tile.Br))
    else:
        grid = grid_side_by_side(p, p.heads, visits.counts, kv_bytes, by_sequence=has_spans(p), reach=schedule.visits)
    args = ("Q", "K", "V", "O", "lse", *sizes, *arguments(features_of(p, tile)))
    launch = Launch(fa2_mma, grid, (32 * tile.warps,), args, shared_bytes=tile.shared_bytes(p.head_dim, p.v_width))
    buffers = (Buffer("lse", p.lse_shape, "float32"), *visits.buffers, *order.buffers)
    listing = (*visits.launches(ahead[1:]), *order.launches(ahead[:1]))
    return Plan(launches=(*listing, launch), buffers=buffers)


def claim(problem: Problem, tile: MmaTile | None = None, tile_of: TileOf = tile_of) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, tile = problem, tile or tile_of(problem)
    own = schedules(p, tile)
    read_bytes, write_bytes = (sum(each) for each in zip(*(_claim_of(schedule, tile) for schedule in own)))
    sequences, rows = sequence_extents(p)
    with_rows = p.heads * sum(len(schedule.first_rows) for schedule in own)
    starts = start_bytes(p, tile.warps, p.heads * sequences * blocks(rows, tile.Br), with_rows)
    return Traffic(read_bytes=read_bytes + starts, write_bytes=write_bytes)


def _claim_of(schedule: Schedule, tile: MmaTile) -> tuple[int, int]:
    """Bytes read and written by the blocks of a schedule, without where sequences begin."""
    p, aligned = schedule.problem, features.rows_aligned_to(schedule.problem)
    copy, copy_of_V = (tile_copy(width, aligned) for width in (p.head_dim, p.v_width))
    q_bytes = schedule.row_bytes("Q", copy).sum()
    o_bytes = schedule.row_bytes("O", elements_per_lane=copy_of_V.elements_per_lane).sum()
    lse_bytes = schedule.row_block_bytes(1, FLOAT32_BYTES).sum()
    # Entries are read as many visits ahead as there are stages, behind the last one, too.
    reads = {"entry_reads": 1, "reads_ahead": tile.stages}
    mask_and_keys, listed_bytes = Visits(schedule).traffic(tile.warps, **reads, copy=copy, copy_of_V=copy_of_V)
    order_read, order_written = LongestFirst(schedule).traffic(tile.warps)
    read_bytes = q_bytes + mask_and_keys + schedule.limit_bytes().sum() + order_read
    warps = schedule.owners * tile.warps
    score_bytes = term_bytes(p, warps) + sink_bytes(p, warps)
    return int(read_bytes) + score_bytes, int(o_bytes + lse_bytes) + listed_bytes + order_written


def tiles(problem: Problem, tile_of: TileOf = tile_of) -> list[dict[str, int]]:
    """What may be chosen, `tile_of(problem)` first."""
    return mma_tile_space(
        problem.head_dim,
        tile_of(problem),
        has_spans(problem),
        noted_bytes=lambda tile: noted_bytes(problem, tile),
        v_width=problem.v_width,
    )


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    return unsupported_on_tensor_cores(problem) or beyond_y(q_len=(sequence_extents(problem)[1], tile_of(problem).Br))


@cache
def _with_tile_of(function: Callable[..., Any], tile_of: TileOf) -> Callable[..., Any]:
    # One object, however often variants are registered: they are the same then.
    return partial(function, tile_of=tile_of)


def register(registry: Registry) -> None:
    """Add `fa2-mma-cupy` and `fa2-mma-numba`."""
    for language, (kernels, takes, tile_of) in LANGUAGES.items():
        register_languages(
            registry,
            "fa2-mma",
            "FlashAttention-2 on tensor cores: asynchronous copies, P in registers",
            {language: kernels},
            _with_tile_of(plan, tile_of),
            _with_tile_of(claim, tile_of),
            _with_tile_of(tiles, tile_of),
            NUMERICS,
            takes=takes,
            supports=supports,
            tile_class=MmaTile,
        )
