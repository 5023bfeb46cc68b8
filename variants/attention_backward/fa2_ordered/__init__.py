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
see each key, 8 N_k per K/V head, and `of rows` which keys each row sees, 8 N_q. Every copy is a run of consecutive
elements (see _tiles/sectors.py).

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
from variants._features import arguments, has_spans, term_bytes
from variants._tiles import BLOCK, WARPS, Tile, blocks, grid, unsupported
from variants._tiles.backward import (
    BACKWARD,
    BackwardSchedule,
    backward_tiles,
    default_backward_tile,
    key_grid_across,
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
from variants._tiles.sink_gradient import cuda_sink_kernels, numba_sink_kernels, sink_gradient_bytes, sink_launches
from variants._tiles.space import P_floats, rows_floats


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then dK and dV, dQ, and the gradients of a bias and of sinks."""
    from variants._tiles.rawkernel import tiles_kernel

    bias = bias_elsewhere(problem)
    chosen = (features.limits(problem), features.scores(problem), features.dropout(problem), bias)

    def kernel(name: str, tile: Tile, file: str = "kernel.cu") -> Any:
        folder, name = "attention_backward/fa2_ordered", f"bwd_fa2_ordered_{name}"
        return tiles_kernel(folder, name, problem, tile, chosen, headers=BACKWARD, file=file)

    of_bias = () if problem.bias is None else (kernel("of_bias", tile, "of_bias.cu"),)
    kernels = kernel("prepare", turned(tile)), kernel("of_keys", turned(tile)), kernel("of_rows", tile)
    return (*kernels, *of_bias, *cuda_sink_kernels(problem))


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels that compute D, then dK and dV, dQ, and the gradients of a bias and of sinks."""
    from variants.attention_backward.fa2_ordered.numba_kernel import bwd_fa2_of_keys, bwd_fa2_of_rows
    from variants.attention_backward.fa2_ordered.numba_of_bias import bwd_fa2_of_bias

    head_dim, dtype = problem.head_dim, problem.dtype
    owning_keys = features.in_numba(problem, tile.Bc, tile.Br)
    owning_rows = features.in_numba(problem, tile.Br, tile.Bc)
    bias = numba_kind(problem, added=False)
    prepare, of_keys = bwd_fa2_of_keys(head_dim, turned(tile), dtype, owning_keys, bias)
    of_rows = bwd_fa2_of_rows(head_dim, tile, dtype, owning_rows, bias)
    of_bias = () if problem.bias is None else (bwd_fa2_of_bias(head_dim, tile, dtype, owning_rows),)
    return prepare, of_keys, of_rows, *of_bias, *numba_sink_kernels(problem)


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}
TAKES = (*features.SPAN_FEATURES, *features.ALL_SCORE_FEATURES)


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Three launches, one more each for a bias and for sinks; `tile` is `default_backward_tile` unless given."""
    p, tile = problem, tile or default_backward_tile(problem.head_dim)
    prepare, of_keys, of_rows, *others = kernels(p, tile)
    row_blocks = grid(p, blocks(p.q_len, tile.Br))
    inputs, scores = ("Q", "K", "V", "dO", "lse", "D"), features.scores(p)
    of_keys_args = (*inputs, "dK", "dV", *sizes(p), score_tau(p), *arguments((features.mirrored_limits(p), scores)))
    of_rows_args = (*inputs, "dQ", *sizes(p), score_tau(p), *arguments((features.limits(p), scores)))
    return Plan(
        launches=(
            Launch(prepare, row_blocks, BLOCK, ("O", "dO", "D", np.int32(p.q_len))),
            Launch(of_keys, key_grid_across(p, tile), BLOCK, of_keys_args),
            Launch(of_rows, grid_across(p, blocks(p.q_len, tile.Br)), BLOCK, of_rows_args),
            *bias_launches(p, others[: p.bias is not None], tile),
            *sink_launches(p, others[p.bias is not None :]),
        ),
        buffers=(Buffer("D", p.lse_shape, "float32"),),
    )


def bias_grid(problem: Problem, tile: Tile) -> tuple[int, int, int]:
    """The grid of the kernel that computes dbias: (tiles of keys, tiles of rows, heads) over which the bias varies."""
    heads, rows, keys = problem.bias_shape
    return blocks(keys, tile.Bc), blocks(rows, tile.Br), heads


def bias_launches(problem: Problem, kernels: Sequence[Any], tile: Tile) -> tuple[Launch, ...]:
    """The launch of the kernel that computes dbias, if there is one."""
    p = problem
    counts = map(np.int32, (p.batch, p.heads, p.q_len, p.kv_len, p.group))
    strides, of_types = map(np.int32, p.bias_strides), arguments((features.limits(p), features.scores(p)))
    args = ("Q", "K", "V", "dO", "lse", "D", "dbias", *counts, score_tau(p), *strides, *of_types)
    return tuple(Launch(kernel, bias_grid(p, tile), BLOCK, args) for kernel in kernels)


def bias_traffic(schedule: BackwardSchedule) -> tuple[int, int]:
    """Bytes read and written because of a bias; 0 without one."""
    p, s = schedule.problem, schedule
    if p.bias is None:
        return 0, 0
    key_blocks, row_blocks, _ = bias_grid(p, s.tile)
    # A row block is loaded by each block that has some of the keys that its rows see.
    loads = s.visits if "kv_len" in p.bias else np.minimum(s.visits, 1)
    read_bytes = int(s.limit_bytes().sum()) * key_blocks + int((loads * 2 * (s.Q_bytes + s.stat_bytes)).sum())
    read_bytes += 2 * int((s.key_visits * s.key_tile_bytes()).sum())
    read_bytes += term_bytes(p, WARPS * p.batch * p.heads * key_blocks * row_blocks)
    # The bias of each score is read three times.
    read_bytes += mirrored_bias_bytes(s) + 2 * row_bias_bytes(s)
    return read_bytes, stored_bias_bytes(s)


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    s = BackwardSchedule(problem, tile or default_backward_tile(problem.head_dim))
    per_row_block = 2 * (s.Q_bytes + s.stat_bytes)
    read_bytes = 2 * s.Q_bytes.sum() + (s.visits * per_row_block).sum() + 2 * s.seen_K_bytes.sum()
    read_bytes += per_row_block.sum() + 2 * (s.key_visits * s.key_tile_bytes()).sum()
    read_bytes += s.key_limit_bytes.sum() + s.limit_bytes().sum()
    read_bytes += s.term_bytes + term_bytes(problem, WARPS * s.owners)
    bias_read, bias_written = bias_traffic(s)
    sinks_read, sinks_written = sink_gradient_bytes(problem)
    read_bytes += bias_read + sinks_read
    write_bytes = s.stat_bytes.sum() + 2 * s.K_bytes.sum() + s.Q_bytes.sum() + bias_written + sinks_written
    return Traffic(int(read_bytes), int(write_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Shared memory of a block in floats, in whichever of the launches that compute dK and dV, or dQ, needs more."""
    of_rows = rows_floats(2 * tile.Br + 2 * tile.Bc, head_dim) + P_floats(tile) + 2 * tile.Br
    return max(owning_keys_floats(head_dim, tile), of_rows)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_backward_tile(head_dim)` first."""
    default = default_backward_tile(problem.head_dim)
    return backward_tiles(problem.head_dim, default, shared_floats, has_spans(problem))


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    tile = default_backward_tile(problem.head_dim)
    return unsupported(problem) or beyond_y(q_len=(problem.q_len, tile.Br), kv_len=(problem.kv_len, tile.Bc))


def register(registry: Registry) -> None:
    """Add `bwd-fa2-ordered-cupy` and `bwd-fa2-ordered-numba`."""
    idea = "FlashAttention-2 backward without atomics: dQ in a launch of its own, rows outside"
    register_backward(registry, "bwd-fa2-ordered", idea, LANGUAGES, plan, claim, tiles, takes=TAKES, supports=supports)
