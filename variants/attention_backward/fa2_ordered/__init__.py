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
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import has_spans
from variants._tiles import BLOCK, Tile, blocks, grid, unsupported
from variants._tiles.backward import (
    BACKWARD,
    BackwardSchedule,
    backward_tiles,
    default_backward_tile,
    key_grid_across,
    owning_keys_floats,
    register_backward,
    sizes,
    turned,
)
from variants._tiles.grids import beyond_y, grid_across
from variants._tiles.registration import Kernels
from variants._tiles.space import P_floats, rows_floats


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then dK and dV, then dQ."""
    from variants._tiles.rawkernel import tiles_kernel

    chosen = (features.limits(problem), features.dropout(problem))

    def kernel(name: str, tile: Tile) -> Any:
        folder, name = "attention_backward/fa2_ordered", f"bwd_fa2_ordered_{name}"
        return tiles_kernel(folder, name, problem, tile, chosen, headers=BACKWARD)

    return kernel("prepare", turned(tile)), kernel("of_keys", turned(tile)), kernel("of_rows", tile)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels that compute D, then dK and dV, then dQ."""
    from variants.attention_backward.fa2_ordered.numba_kernel import bwd_fa2_of_keys, bwd_fa2_of_rows

    head_dim, dtype = problem.head_dim, problem.dtype
    owning_keys = features.in_numba(problem, tile.Bc, tile.Br)
    owning_rows = features.in_numba(problem, tile.Br, tile.Bc)
    prepare, of_keys = bwd_fa2_of_keys(head_dim, turned(tile), dtype, owning_keys)
    return prepare, of_keys, bwd_fa2_of_rows(head_dim, tile, dtype, owning_rows)


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Three launches; `tile` is `default_backward_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_backward_tile(problem.head_dim)
    prepare, of_keys, of_rows = kernels(p, tile)
    row_blocks = grid(p, blocks(p.q_len, tile.Br))
    inputs = ("Q", "K", "V", "dO", "lse", "D")
    of_keys_args = (*inputs, "dK", "dV", *sizes(p), features.mirrored_limits(p).argument)
    of_rows_args = (*inputs, "dQ", *sizes(p), features.limits(p).argument)
    return Plan(
        launches=(
            Launch(prepare, row_blocks, BLOCK, ("O", "dO", "D", np.int32(p.q_len))),
            Launch(of_keys, key_grid_across(p, tile), BLOCK, of_keys_args),
            Launch(of_rows, grid_across(p, blocks(p.q_len, tile.Br)), BLOCK, of_rows_args),
        ),
        buffers=(Buffer("D", p.lse_shape, "float32"),),
    )


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    s = BackwardSchedule(problem, tile or default_backward_tile(problem.head_dim))
    per_row_block = 2 * (s.Q_bytes + s.stat_bytes)
    read_bytes = 2 * s.Q_bytes.sum() + (s.visits * per_row_block).sum() + 2 * s.seen_K_bytes.sum()
    read_bytes += per_row_block.sum() + 2 * (s.key_visits * s.key_tile_bytes()).sum()
    read_bytes += s.key_limit_bytes.sum() + s.limit_bytes().sum()
    write_bytes = s.stat_bytes.sum() + 2 * s.K_bytes.sum() + s.Q_bytes.sum()
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
    register_backward(registry, "bwd-fa2-ordered", idea, LANGUAGES, plan, claim, tiles, supports=supports)
