"""FlashAttention-2's backward pass with dQ in a launch of its own: no atomics, the same bits every time.

Dao 2023, arXiv 2307.08691, algorithm 2, in two loop orders: tiles of keys outside for dK and dV, as printed except for
line 15, and then blocks of rows outside for dQ, which computes S, P and dP once more: seven products instead of five.
In return each sum has one order, and no dQ is read, added to and written at every step.

Bytes, per query head, n_r rows in a block and J_i the tiles with a key that row block i sees:

    prepare     O, dO read, D written                             2 X_q, 4 N_q
    of keys     sum_i J_i (Q_i + dO_i + 4 n_r of L + 4 n_r of D) read
                per K/V head: K_j, V_j read, dK_j, dV_j written   2 X_k, 2 X_k
    of rows     Q, dO, L, D and sum_i J_i (K_j + V_j) read, dQ written

K_j and V_j are not read if no row sees a key of the tile. If the mask is not a band, `of keys` also reads which rows
see each key, 8 N_k per K/V head, and `of rows` which keys each row sees, 8 N_q. With unpadded sequences, each of a
block's 4 warps reads where its own begins and ends, in both. If what a row sees is no run of keys (masks of blocks,
FlashMask), two launches list the tiles of rows that each K_j meets and the tiles of keys that each Q_i meets, and J_i
leaves out the others (_tiles/visits.py). Every copy is a run of consecutive elements (see _tiles/sectors.py), or rows a
stride apart in a layout.

Of score terms, each warp of a block reads ALiBi's slope, and a block the bias of each score that a row sees. Where
there is a bias, a launch whose blocks own tiles of dbias reads what `of rows` does once more, Q_i, dO_i, L and D for
each tile of keys, and writes dbias. Where there are sinks, a last launch reads L and D, and writes a number per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness import Buffer, Launch, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments, has_spans, sequence_extents, start_bytes, term_bytes
from variants._tiles import BLOCK, WARPS, Tile, blocks, grid, unsupported
from variants._tiles.backward import (
    BACKWARD,
    BackwardSchedule,
    backward_schedules,
    backward_tiles,
    default_backward_tile,
    key_grid_across,
    mirrored_start_bytes,
    owning_keys_floats,
    register_backward,
    score_tau,
    sizes,
    turned,
)
from variants._tiles.bias_gradient import (
    bias_elsewhere,
    mirrored_bias_bytes,
    numba_kind,
    row_bias_bytes,
    stored_bias_bytes,
)
from variants._tiles.grids import beyond_y, grid_across
from variants._tiles.registration import Kernels
from variants._tiles.schedule import FLOAT32_BYTES
from variants._tiles.sectors import Integers
from variants._tiles.sink_gradient import cuda_sink_kernels, numba_sink_kernels, sink_gradient_bytes, sink_launches
from variants._tiles.space import P_floats, rows_floats
from variants._tiles.visits import FEATURES as LISTED_FEATURES
from variants._tiles.visits import Visits, cuda_listing, noted_bytes, numba_listing, numba_rule, tile_order


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then dK and dV, dQ, and the gradients of a bias and of sinks, and list tiles."""
    from variants._tiles.rawkernel import STRIDED, tiles_kernel

    headers = BACKWARD if problem.layout.is_dense else (*BACKWARD, *STRIDED)
    bias = bias_elsewhere(problem)
    of_scores = features.scores(problem), features.dropout(problem), bias
    chosen = (features.limits(problem), *of_scores, features.sequences(problem), *of_layouts(problem))

    def kernel(name: str, owns_keys: bool, file: str = "kernel.cu") -> Any:
        folder, name = "attention_backward/fa2_ordered", f"bwd_fa2_ordered_{name}"
        order, sides = tile_order(problem, tile, owns_keys), turned(tile) if owns_keys else tile
        return tiles_kernel(folder, name, problem, sides, (*chosen, order), headers=headers, file=file)

    of_bias = () if problem.bias is None else (kernel("of_bias", False, "of_bias.cu"),)
    kernels = kernel("prepare", True), kernel("of_keys", True), kernel("of_rows", False)
    listing = *cuda_listing(problem, tile, mirrored=True), *cuda_listing(problem, tile)[:1]
    return (*kernels, *of_bias, *cuda_sink_kernels(problem), *listing)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels that compute D, then dK and dV, dQ, and the gradients of a bias and of sinks, and list tiles."""
    from variants._tiles.numba_backward import RowsInMemory
    from variants.attention_backward.fa2_ordered.numba_kernel import bwd_fa2_of_keys, bwd_fa2_of_rows
    from variants.attention_backward.fa2_ordered.numba_of_bias import bwd_fa2_of_bias

    rows = RowsInMemory(problem.head_dim, problem.v_width, problem.dtype, features.rows_aligned_to(problem))
    owning_keys = features.in_numba(problem, tile.Bc, tile.Br, rule=numba_rule(problem, tile, mirrored=True))
    owning_rows = features.in_numba(problem, tile.Br, tile.Bc, rule=numba_rule(problem, tile))
    bias = numba_kind(problem, added=False)
    prepare, of_keys = bwd_fa2_of_keys(rows, turned(tile), owning_keys, bias)
    of_rows = bwd_fa2_of_rows(rows, tile, owning_rows, bias)
    of_bias = () if problem.bias is None else (bwd_fa2_of_bias(rows, tile, owning_rows),)
    listing = *numba_listing(problem, tile, mirrored=True), *numba_listing(problem, tile)[:1]
    return prepare, of_keys, of_rows, *of_bias, *numba_sink_kernels(problem), *listing


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}
TAKES = (
    *features.SPAN_FEATURES,
    *LISTED_FEATURES,
    *features.ALL_SCORE_FEATURES,
    features.LAYOUT_FEATURE,
    features.VARLEN_FEATURE,
    features.V_WIDTH_FEATURE,
)


def of_layouts(problem: Problem) -> tuple[Feature, Feature]:
    """Where the rows of tensors and of their gradients lie, the last parameters of kernels."""
    return features.layout(problem), features.gradient_layout(problem)


def tile_of(problem: Problem) -> Tile:
    """The tile of a problem unless another one is asked for, that of its longest rows."""
    return default_backward_tile(max(problem.head_dim, problem.v_width))


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Three launches, one more each for a bias and for sinks; `tile` is `tile_of(problem)` unless given.

    Where a row sees no run of keys, tiles of rows and of keys are listed before these.
    """
    p, tile = problem, tile or tile_of(problem)
    prepare, of_keys, of_rows, *others = kernels(p, tile)
    row_blocks = grid(p, blocks(p.q_len, tile.Br))
    inputs, scores = ("Q", "K", "V", "dO", "lse", "D"), features.scores(p)
    of_bias, others = others[: p.bias is not None], others[p.bias is not None :]
    of_sinks, listing = others[: p.sinks], others[p.sinks :]
    schedule = BackwardSchedule(p, tile)
    row_tiles, key_tiles = Visits(schedule, mirrored=True), Visits(schedule)
    of_mask = features.mirrored_limits(p), tile_order(p, tile, mirrored=True)
    mirrored = arguments((*of_mask, scores, features.mirrored_sequences(p), *of_layouts(p)))
    of_keys_args = (*inputs, "dK", "dV", *sizes(p), score_tau(p), *mirrored)
    of_types = arguments((features.limits(p), tile_order(p, tile), scores, features.sequences(p), *of_layouts(p)))
    prepare_args = ("O", "dO", "D", np.int32(p.q_len), *arguments(of_layouts(p)))
    of_rows_args = (*inputs, "dQ", *sizes(p), score_tau(p), *of_types)
    return Plan(
        launches=(
            *row_tiles.launches(listing[:-1]),
            *key_tiles.launches(listing[-1:]),
            Launch(prepare, row_blocks, BLOCK, prepare_args),
            Launch(of_keys, key_grid_across(p, tile), BLOCK, of_keys_args),
            Launch(of_rows, grid_across(p, blocks(sequence_extents(p)[1], tile.Br)), BLOCK, of_rows_args),
            *bias_launches(p, of_bias, tile),
            *sink_launches(p, of_sinks),
        ),
        buffers=(Buffer("D", p.lse_shape, "float32"), *row_tiles.buffers, *key_tiles.list_buffers),
    )


def bias_grid(problem: Problem, tile: Tile) -> tuple[int, int, int]:
    """The grid of the kernel that computes dbias: (tiles of keys, tiles of rows, heads) over which the bias varies."""
    heads, rows, keys = problem.bias_shape
    return blocks(keys, tile.Bc), blocks(rows, tile.Br), heads


def bias_launches(problem: Problem, kernels: Sequence[Any], tile: Tile) -> tuple[Launch, ...]:
    """The launch of the kernel that computes dbias, if there is one."""
    p = problem
    counts = map(np.int32, (p.batch, p.heads, p.q_len, p.kv_len, p.group))
    strides = map(np.int32, p.bias_strides)
    of_types = arguments((features.limits(p), tile_order(p, tile), features.scores(p), *of_layouts(p)))
    args = ("Q", "K", "V", "dO", "lse", "D", "dbias", *counts, score_tau(p), *strides, *of_types)
    return tuple(Launch(kernel, bias_grid(p, tile), BLOCK, args) for kernel in kernels)


def bias_traffic(schedule: BackwardSchedule) -> tuple[int, int]:
    """Bytes read and written because of a bias; 0 without one."""
    p, s = schedule.problem, schedule
    if p.bias is None:
        return 0, 0
    key_blocks, row_blocks, _ = bias_grid(p, s.tile)
    # A row block is loaded by each block that has some of the keys that its rows see.
    by_keys, visits = "kv_len" in p.bias, Visits(s)
    loads = s.visits if by_keys else np.minimum(s.visits, 1)
    read_bytes = int(s.limit_bytes().sum()) * key_blocks + int((loads * bytes_per_row_block(s)).sum())
    read_bytes += int((s.key_visits * s.key_and_value_bytes).sum())
    read_bytes += term_bytes(p, WARPS * p.batch * p.heads * key_blocks * row_blocks)
    # Of listed tiles a block reads those of all keys.
    alike = p.batch * p.heads // len(s.visits)
    lists = visits.looked_at.sum(axis=2) if by_keys else visits.looked_at.any(axis=2)
    read_bytes += visits.mask_bytes(WARPS, alike * int((lists * (1 + s.visits)).sum()))
    # The bias of each score is read three times.
    read_bytes += mirrored_bias_bytes(s) + 2 * row_bias_bytes(s)
    return read_bytes, stored_bias_bytes(s)


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, tile = problem, tile or tile_of(problem)
    s, of_sequences = BackwardSchedule(p, tile), backward_schedules(p, tile)
    prepared = int((s.row_bytes("O") + s.row_bytes("dO")).sum()), int(s.stat_bytes.sum())
    sequences, rows = sequence_extents(p)
    with_rows = p.heads * sum(len(each.first_rows) for each in of_sequences)
    starts = start_bytes(p, WARPS, p.heads * sequences * blocks(rows, tile.Br), with_rows)
    listing = s.lists_of_keys_traffic, s.lists_of_rows_traffic, Visits(s).rule_traffic
    each = (prepared, *map(_of_sequence, of_sequences), *listing, bias_traffic(s), sink_gradient_bytes(p))
    read_bytes, write_bytes = (sum(bytes_of_each) for bytes_of_each in zip(*each))
    return Traffic(read_bytes + starts + mirrored_start_bytes(of_sequences), write_bytes)


def _of_sequence(schedule: BackwardSchedule) -> tuple[int, int]:
    """Bytes that both kernels with tiles of a schedule read and write, without lists and where sequences begin."""
    s, p = schedule, schedule.problem
    read_bytes = (s.visits * bytes_per_row_block(s)).sum() + s.seen_K_and_V_bytes.sum()
    read_bytes += bytes_per_row_block(s).sum() + (s.key_visits * s.key_and_value_bytes).sum()
    read_bytes += s.key_limit_bytes.sum() + s.limit_bytes().sum()
    read_bytes += s.term_bytes + term_bytes(p, WARPS * s.owners)
    return int(read_bytes), int(s.dK_and_dV_bytes + s.row_bytes("dQ").sum())


def bytes_per_row_block(schedule: BackwardSchedule) -> Integers:
    """(S, T_r): bytes of Q_i, dO_i, L_i and D_i of every query head once."""
    return schedule.row_bytes("Q") + schedule.row_bytes("dO") + 2 * schedule.stat_bytes


def shared_floats(problem: Problem, tile: Tile) -> int:
    """Shared memory of a block in floats, in whichever of the launches that compute dK and dV, or dQ, needs more."""
    of_tiles = sum(rows_floats(tile.Br + tile.Bc, width) for width in (problem.head_dim, problem.v_width))
    of_rows = of_tiles + P_floats(tile) + 2 * tile.Br
    return max(owning_keys_floats(problem.head_dim, tile, problem.v_width), of_rows)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `tile_of(problem)` first."""

    def floats(_: int, tile: Tile) -> int:
        return shared_floats(problem, tile) + noted_bytes(problem, tile) // FLOAT32_BYTES

    longest_row = max(problem.head_dim, problem.v_width)
    return backward_tiles(longest_row, tile_of(problem), floats, has_spans(problem))


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    tile = tile_of(problem)
    rows, keys = sequence_extents(problem)[1], features.mirrored_sequence_extents(problem)[1]
    return unsupported(problem) or beyond_y(q_len=(rows, tile.Br), kv_len=(keys, tile.Bc))


def register(registry: Registry) -> None:
    """Add `bwd-fa2-ordered-cupy` and `bwd-fa2-ordered-numba`."""
    idea = "FlashAttention-2 backward without atomics: dQ in a launch of its own, rows outside"
    register_backward(registry, "bwd-fa2-ordered", idea, LANGUAGES, plan, claim, tiles, takes=TAKES, supports=supports)
