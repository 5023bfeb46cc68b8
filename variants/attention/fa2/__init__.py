"""FlashAttention-2: plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there: J_i, the tiles that have a key which row block i sees, in place of all tiles,
and 8 N_q of the first key and the end of what each row sees where the mask is no band. The head's slope and its sink,
where it has them, are read by each of a block's 4 warps: T_r 4 x 32 bytes each. Every copy is a run of consecutive
elements (_tiles/sectors.py); what padded rows cost says _tiles/tile_copies.py.

K_j and V_j have a place each in shared memory, Q_i and P one more, beyond what a block may have without asking. Copies
are cp.async where float32 is stored, which needs no registers; what is widened passes through them.

Blocks start with the last rows of all heads, which see most keys where causal (_tiles/grids.py).

Where what a row sees is no run of keys (masks of blocks, FlashMask), a launch of its own lists the tiles of which some
row of a block sees a key, and J_i leaves out the others; what that costs says _tiles/visits.py. A tile whose keys all
rows see is worked on as without that mask.

Dropout moves no bytes: a thread draws numbers for the keys of each of its rows, eight at a time, and leaves the weights
that drop out out of P, not out of l. O is multiplied by 1 / (1 - P) as it is divided by l.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans, sequence_extents, sink_bytes, start_bytes, term_bytes
from variants._tiles import BLOCK, MORE_SHARED_BYTES, THREADS_X, THREADS_Y, WARPS, Tile, blocks, unsupported
from variants._tiles.bias import bias_bytes
from variants._tiles.copies import tile_copy
from variants._tiles.grids import beyond_y, grid_across
from variants._tiles.registration import ROW_BY_ROW, Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule, schedules
from variants._tiles.space import P_floats, rows_floats, tile_space
from variants._tiles.visits import FEATURES as LISTED_FEATURES
from variants._tiles.visits import Visits, cuda_listing, noted_bytes, numba_listing, numba_rule, tile_order

NUMERICS = Numerics(
    scores="float32",
    weights="float32",
    functions="__expf",
    tanh="accurate",
    sums="nearest",
    one_score=True,
    divides_last=True,
)
"""Nothing is rounded to 16 bits before O, which is divided once."""


def default_tile(head_dim: int) -> Tile:
    """The fastest of `tiles` on an H200 at head_dim 64, 96, 128 and 256, long sequences, float32.

    `head_dim` is the length of the longest rows.
    """
    if head_dim <= 96:
        return Tile(64, 64)
    if head_dim <= 128:
        return Tile(64, 48)
    return Tile(32, 16)


def tile_of(problem: Problem) -> Tile:
    """The tile of a problem unless another one is asked for."""
    return default_tile(max(problem.head_dim, problem.v_width))


def blocks_per_sm(v_width: int, tile: Tile) -> int:
    """As many blocks as share a multiprocessor at least: four leave a thread 128 registers, three 168, two 255.

    Beside its part of S and O a thread has elements of Q and K, or of P and V, on the way to be multiplied.
    """
    rows, keys, elements = blocks(tile.Br, THREADS_Y), blocks(tile.Bc, THREADS_X), blocks(v_width, THREADS_X)
    part = rows * (keys + elements)
    return 4 if part <= 48 else 3 if part <= 72 else 2


def features_of(problem: Problem, tile: Tile) -> tuple[Feature, ...]:
    """The kernel's features, in the order of its parameters."""
    p = problem
    order = tile_order(p, tile)
    dropout = features.dropout(p, keys=tile.Bc)
    of_scores = features.scores(p), features.sink(p), dropout
    return features.limits(p), order, *of_scores, features.sequences(p), features.layout(p)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels of the algorithm and of the tile lists."""
    from variants._tiles.rawkernel import STRIDED, tiles_kernel

    steps = 2 if problem.head_dim <= 64 else 4  # the faster one on an H100
    options = {"BLOCKS_PER_SM": blocks_per_sm(problem.v_width, tile), "STEPS_AT_ONCE": steps}
    headers = () if problem.layout.is_dense else STRIDED
    chosen = features_of(problem, tile)
    kernel = tiles_kernel("attention/fa2", "fa2", problem, tile, chosen, options, copies=True, headers=headers)
    return (kernel, *cuda_listing(problem, tile))


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels of the algorithm and of the tile lists."""
    from variants.attention.fa2.numba_kernel import fa2_kernel

    chosen = features.in_numba(problem, tile.Br, tile.Bc, rule=numba_rule(problem, tile))
    per_sm, aligned = blocks_per_sm(problem.v_width, tile), features.rows_aligned_to(problem)
    kernel = fa2_kernel(problem.head_dim, problem.v_width, tile, per_sm, problem.dtype, chosen, aligned)
    return (kernel, *numba_listing(problem, tile))


TAKES = (
    *features.SPAN_FEATURES,
    *LISTED_FEATURES,
    *features.ALL_SCORE_FEATURES,
    features.DROPOUT_FEATURE,
    features.LAYOUT_FEATURE,
    features.VARLEN_FEATURE,
    features.V_WIDTH_FEATURE,
)
LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """One launch, behind that which lists tiles; `tile` is `tile_of(problem)` unless given."""
    p, tile = problem, tile or tile_of(problem)
    fa2, *listing = kernels(p, tile)
    visits = Visits(Schedule(p, tile))
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group), np.float32(features.factor(p)))
    args = ("Q", "K", "V", "O", "lse", *sizes, *arguments(features_of(p, tile)))
    owners = grid_across(p, blocks(sequence_extents(p)[1], tile.Br))
    launch = Launch(fa2, owners, BLOCK, args, shared_bytes=shared_floats(p.head_dim, tile, p.v_width) * FLOAT32_BYTES)
    return Plan(
        launches=(*visits.launches(listing), launch),
        buffers=(Buffer("lse", p.lse_shape, "float32"), *visits.buffers),
    )


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, tile = problem, tile or tile_of(problem)
    own = [_claim_of(schedule) for schedule in schedules(p, tile)]
    sequences, rows = sequence_extents(p)
    with_rows = p.heads * sum(len(schedule.first_rows) for schedule in schedules(p, tile))
    starts = start_bytes(p, WARPS, p.heads * sequences * blocks(rows, tile.Br), with_rows)
    read_bytes, write_bytes = (sum(each) for each in zip(*own))
    return Traffic(read_bytes=read_bytes + starts, write_bytes=write_bytes)


def _claim_of(schedule: Schedule) -> tuple[int, int]:
    """Bytes read and written by the blocks of a schedule, without where sequences begin."""
    p = schedule.problem
    copy, copy_of_V = tile_copy(p), tile_copy(p, p.v_width)
    o_bytes, q_bytes = schedule.row_bytes("O").sum(), schedule.row_bytes("Q", copy).sum()
    lse_bytes = schedule.row_block_bytes(1, FLOAT32_BYTES).sum()
    visits = Visits(schedule)
    mask_and_keys, listed_bytes = visits.traffic(WARPS, entry_reads=1, copy=copy, copy_of_V=copy_of_V)
    readers = WARPS * schedule.owners
    score_bytes = term_bytes(p, readers) + bias_bytes(visits) + sink_bytes(p, readers)
    read_bytes = q_bytes + mask_and_keys + schedule.limit_bytes().sum() + score_bytes
    return int(read_bytes), int(o_bytes + lse_bytes) + listed_bytes


def shared_floats(head_dim: int, tile: Tile, v_width: int | None = None) -> int:
    """Q_i and later O_i, K_j, V_j and P, where l and m of every row are put in the end.

    Rows of V and O have `v_width` elements, or `head_dim` if it is None.
    """
    widths = (head_dim, v_width or head_dim)
    of_rows = max(rows_floats(tile.Br, width) for width in widths)
    return of_rows + sum(rows_floats(tile.Bc, width) for width in widths) + P_floats(tile)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `tile_of(problem)` first."""

    def floats(_: int, tile: Tile) -> int:
        return shared_floats(problem.head_dim, tile, problem.v_width) + noted_bytes(problem, tile) // FLOAT32_BYTES

    # What a thread holds of O are elements of its rows, which are as long as those of V.
    return tile_space(problem.v_width, tile_of(problem), floats, has_spans(problem), MORE_SHARED_BYTES)


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    return unsupported(problem) or beyond_y(q_len=(sequence_extents(problem)[1], tile_of(problem).Br))


def register(registry: Registry) -> None:
    """Add `fa2-cupy` and `fa2-numba`."""
    idea = "FlashAttention-2: Q blocks outside, O stays on chip and is written once"
    register_languages(
        registry,
        "fa2",
        idea,
        LANGUAGES,
        plan,
        claim,
        tiles,
        NUMERICS,
        takes=TAKES,
        supports=supports,
        invariant_to=ROW_BY_ROW,
    )
