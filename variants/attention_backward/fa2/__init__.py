"""FlashAttention-2's backward pass: tiles of keys outside, dK and dV stay on chip, and dQ is summed by atomics.

Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", arXiv 2307.08691,
algorithm 2. Lines 3 and 4, dQ = 0 and D = rowsum(dO o O), are a launch before. Then one thread block owns K_j and V_j.
It walks over the Q_i and dO_i of all query heads that share them, recomputes P = exp(S - L), and keeps dK_j and dV_j
in registers, so that nothing is summed over the heads of a group afterwards. Each K_j has a part of every dQ_i: the
blocks add theirs to memory by atomics, in float32 and in no fixed order, so dQ differs in its last bits between runs.
If the problem has 16 bits or a layout, a last launch writes dQ, rounded.

Bytes, per query head, n_r rows in a block and J_i the tiles with a key that row block i sees:

    prepare     O, dO read, D written, dQ = 0 written             2 X_q + 4 N_q, 4 N_q d
    main        sum_i J_i (Q_i + dO_i + 4 n_r of L + 4 n_r of D) read, sum_i J_i (4 n_r d of dQ) read and written
                per K/V head: K_j, V_j read, dK_j, dV_j written   2 X_k, 2 X_k
    round       16 bits or a layout: dQ read in float32, written  4 N_q d, X_q

where an atomic reads and writes. K_j and V_j are not read if no row sees a key of the tile. If the mask is not a band,
main also reads which rows see each key, 8 N_k per K/V head. With unpadded sequences, each of a block's 4 warps reads
where its own begins and ends in K, and, unless it ends before the block, in Q. If what a row sees is no run of keys
(masks of blocks, FlashMask), a launch lists the tiles of rows that each K_j meets, and J_i leaves out the others
(_tiles/visits.py): each warp of a block reads how many there are and the first one, and the others per head. Every
copy is a run of consecutive elements (see _tiles/sectors.py), or rows a stride apart in a layout, those of Q_i and dO_i
in main with up to 16 bytes per lane. Dropout moves no bytes: each thread draws the numbers of its pairs again.

Of score terms, main reads ALiBi's slope in each warp of a block, for each head, and the bias of each score that a row
sees. Where there is a bias, prepare also writes dbias = 0, and main adds to it, for each tile, dS of all pairs or its
sums over rows or keys. Where there are sinks, a last launch reads L and D, and writes a number per head.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans
from variants._tiles import (
    BLOCK,
    MORE_SHARED_BYTES,
    SHARED_BYTES,
    THREADS_X,
    THREADS_Y,
    Tile,
    blocks,
    grid,
    unsupported,
)
from variants._tiles.backward import (
    BACKWARD,
    BackwardSchedule,
    Claims,
    backward_schedules,
    backward_tiles,
    key_grid_across,
    mirrored_start_bytes,
    owning_keys_floats,
    register_backward,
    score_tau,
    sizes,
    sum_of_launches,
    turned,
)
from variants._tiles.bias_gradient import added_bias, added_bias_bytes, numba_kind
from variants._tiles.copies import tile_copy
from variants._tiles.grids import beyond_y
from variants._tiles.registration import Kernels
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sink_gradient import cuda_sink_kernels, numba_sink_kernels, sink_gradient_bytes, sink_launches
from variants._tiles.space import rows_floats
from variants._tiles.visits import FEATURES as LISTED_FEATURES
from variants._tiles.visits import Visits, cuda_listing, noted_bytes, numba_listing, numba_rule, tile_order


def default_tile(head_dim: int) -> Tile:
    """The fastest of `tiles` on an H200 at head_dim 64, 96, 128, 192 and 256, long sequences, float32."""
    if head_dim <= 96:
        return Tile(32, 64)
    if head_dim <= 128:
        return Tile(32, 48)
    return Tile(24, 32) if head_dim <= 192 else Tile(16, 16)


def tile_of(problem: Problem) -> Tile:
    """The tile of a problem unless another one is asked for, that of its longest rows."""
    return default_tile(max(problem.head_dim, problem.v_width))


def blocks_per_sm(problem: Problem, tile: Tile) -> int:
    """As many blocks as share a multiprocessor at least: three where a thread's dK and dV leave it enough registers."""
    elements = blocks(problem.head_dim, THREADS_X) + blocks(problem.v_width, THREADS_X)
    return 3 if blocks(tile.Bc, THREADS_Y) * elements <= 64 else 2


def features_of(problem: Problem, tile: Tile) -> tuple[Feature, ...]:
    """The main kernel's features, in the order of its parameters."""
    dropout = features.dropout(problem, keys=tile.Bc)
    of_mask = features.mirrored_limits(problem), tile_order(problem, tile, mirrored=True)
    of_scores = features.scores(problem), dropout, added_bias(problem)
    return *of_mask, *of_scores, features.mirrored_sequences(problem), *of_layouts(problem)


def of_layouts(problem: Problem) -> tuple[Feature, Feature]:
    """Where the rows of tensors and of their gradients lie, the last parameters of kernels."""
    return features.layout(problem), features.gradient_layout(problem)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then all gradients, round dQ, sum those of sinks, and list tiles."""
    from variants._tiles.rawkernel import STRIDED, tiles_kernel

    headers = BACKWARD if problem.layout.is_dense else (*BACKWARD, *STRIDED)
    folder, chosen = "attention_backward/fa2", features_of(problem, tile)
    sizes = {"BLOCKS_PER_SM": blocks_per_sm(problem, tile), "STEPS_AT_ONCE": 4}
    names = ("bwd_fa2_prepare", "bwd_fa2", "bwd_fa2_round")
    kernels = (tiles_kernel(folder, n, problem, turned(tile), chosen, sizes, True, headers) for n in names)
    return (*kernels, *cuda_sink_kernels(problem), *cuda_listing(problem, tile, mirrored=True))


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels that compute D, then all gradients, round dQ, sum those of sinks, and list tiles."""
    from variants._tiles.numba_backward import RowsInMemory
    from variants.attention_backward.fa2.numba_kernel import bwd_fa2_kernels

    rule = numba_rule(problem, tile, mirrored=True)
    resident, chosen = blocks_per_sm(problem, tile), features.in_numba(problem, tile.Bc, tile.Br, rule=rule)
    rows = RowsInMemory(problem.head_dim, problem.v_width, problem.dtype, features.rows_aligned_to(problem))
    kernels = bwd_fa2_kernels(rows, turned(tile), resident, chosen, numba_kind(problem, added=True))
    own = kernels.bwd_fa2_prepare, kernels.bwd_fa2, kernels.bwd_fa2_round
    return (*own, *numba_sink_kernels(problem), *numba_listing(problem, tile, mirrored=True))


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
    """Two launches, one more if dQ has 16 bits or a layout, and one more with sinks; `tile` is `tile_of` unless given.

    Where a row sees no run of keys, tiles are listed before these.
    """
    p, tile = problem, tile or tile_of(problem)
    prepare, main, rounding, *others = kernels(p, tile)
    of_sinks, listing = others[: p.sinks], others[p.sinks :]
    visits = Visits(BackwardSchedule(p, tile), mirrored=True)
    running_dQ = "dQ_running" if rounds_dQ(p) else "dQ"
    row_blocks, q_len = grid(p, blocks(p.q_len, tile.Br)), np.int32(p.q_len)
    args = (
        "Q",
        "K",
        "V",
        "dO",
        "lse",
        "D",
        running_dQ,
        "dK",
        "dV",
        *sizes(p),
        score_tau(p),
        *arguments(features_of(p, tile)),
    )
    shared_bytes = owning_keys_floats(p.head_dim, tile, p.v_width, room_for_dQ=True) * FLOAT32_BYTES
    layout, gradients = arguments(of_layouts(p))
    prepare_args = ("O", "dO", "D", running_dQ, q_len, added_bias(p).argument, layout, gradients)
    launches = [
        *visits.launches(listing),
        Launch(prepare, row_blocks, BLOCK, prepare_args),
        Launch(main, key_grid_across(p, tile), BLOCK, args, shared_bytes),
    ]
    buffers = [Buffer("D", p.lse_shape, "float32"), *visits.buffers]
    if running_dQ != "dQ":
        launches.append(Launch(rounding, row_blocks, BLOCK, (running_dQ, "dQ", q_len, gradients)))
        buffers.append(Buffer(running_dQ, p.q_shape, "float32"))
    return Plan((*launches, *sink_launches(p, of_sinks)), tuple(buffers))


def rounds_dQ(problem: Problem) -> bool:
    """Whether blocks add to a C-contiguous dQ of float32 in a buffer of its own, from which a last launch writes dQ."""
    return problem.dtype != "float32" or not problem.layout.is_dense


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    return sum_of_launches(claims(problem, tile))


def claims(problem: Problem, tile: Tile | None = None) -> Claims:
    """The bytes of each launch."""
    tile = tile or tile_of(problem)
    s, of_sequences = BackwardSchedule(problem, tile), backward_schedules(problem, tile)
    bias_read, bias_added, bias_zeroed = added_bias_bytes(s)
    of_listing = s.lists_of_keys_traffic, Visits(s, mirrored=True).rule_traffic
    read, written = (sum(each) for each in zip(*map(_of_keys, of_sequences), *of_listing))
    read += bias_read + bias_added + mirrored_start_bytes(of_sequences)
    running_bytes = s.running_bytes.sum()
    return Claims(
        prepare=((s.row_bytes("O") + s.row_bytes("dO")).sum(), s.stat_bytes.sum() + running_bytes + bias_zeroed),
        of_keys=(read, written + bias_added),
        rounding=(running_bytes, s.row_bytes("dQ").sum()) if rounds_dQ(problem) else (0, 0),
        of_sinks=sink_gradient_bytes(problem),
    )


def _of_keys(schedule: BackwardSchedule) -> tuple[int, int]:
    """Bytes that blocks of keys read and write, without those of a bias, of lists and of where sequences begin."""
    s, p = schedule, schedule.problem
    copied_bytes = s.row_bytes("Q", tile_copy(p)) + s.row_bytes("dO", tile_copy(p, p.v_width))
    added_bytes = (s.visits * s.running_bytes).sum()
    read_bytes = (s.visits * (copied_bytes + 2 * s.stat_bytes)).sum() + added_bytes
    read_bytes += s.seen_K_and_V_bytes.sum() + s.key_limit_bytes.sum() + s.term_bytes
    return int(read_bytes), int(added_bytes + s.dK_and_dV_bytes)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `tile_of(problem)` first."""
    d, v_width = problem.head_dim, problem.v_width

    def floats(_: int, tile: Tile) -> int:
        return owning_keys_floats(d, tile, v_width, room_for_dQ=True) + noted_bytes(problem, tile) // FLOAT32_BYTES

    chosen = backward_tiles(max(d, v_width), tile_of(problem), floats, has_spans(problem), MORE_SHARED_BYTES)
    return [tile for tile in chosen if preparing_floats(v_width, tile["Br"]) * FLOAT32_BYTES <= SHARED_BYTES]


def preparing_floats(v_width: int, rows: int) -> int:
    """Shared memory that the first launch declares: O_i, dO_i and D_i."""
    return rows_floats(2 * rows, v_width) + rows


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    tile = tile_of(problem)
    return unsupported(problem) or beyond_y(kv_len=(features.mirrored_sequence_extents(problem)[1], tile.Bc))


def register(registry: Registry) -> None:
    """Add `bwd-fa2-cupy` and `bwd-fa2-numba`."""
    idea = "FlashAttention-2 backward: K/V tiles outside, dK and dV on chip, dQ summed by atomics"
    register_backward(
        registry, "bwd-fa2", idea, LANGUAGES, plan, claim, tiles, deterministic=False, takes=TAKES, supports=supports
    )
