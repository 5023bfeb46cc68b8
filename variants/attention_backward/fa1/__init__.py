"""FlashAttention's backward pass: tiles of keys outside, blocks of rows inside, and dQ goes to memory and back.

Dao, Fu, Ermon, Rudra and Re 2022, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", arXiv
2205.14135, algorithm 4, without dropout. One thread block per head of K and V walks over all Q_i, O_i and dO_i for
each K_j and V_j. dK_j and dV_j stay on chip; dQ_i is read, added to and written at each inner step, in float32, by
this block alone, so that every sum has one order. D_i = rowsum(dO_i o O_i) is computed at each step (line 19), which
is why O_i is read as often. P is computed from the log-sum-exp where the paper has l and m.

Query heads that share K and V share a block, which sums dK_j and dV_j over them.

Tiles: line 2 has B_c = ceil(M / 4d) and B_r = min(B_c, d). With O_i, P and dS on chip as well, 48 KiB hold less: 32
keys and 16 rows for head_dim up to 64, 16 and 16 up to 128, 8 and 8 beyond.

Bytes, per query head, n_r rows in a block and J_i the tiles with a key that row block i sees:

    initialise  dQ = 0 written                                                          4 N_q d
    main        sum_i J_i (Q_i + O_i + dO_i + 4 n_r of lse + 4 n_r d of dQ) read, sum_i J_i (4 n_r d of dQ) written
                per K/V head: K_j, V_j read, dK_j, dV_j written                         2 X_k, 2 X_k
    round       16 bits only: dQ read in float32, written                               4 N_q d, X_q

K_j and V_j are not read if no row sees a key of the tile. If the mask is not a band, main also reads which rows see
each key, 8 N_k per K/V head. Every copy is a run of consecutive elements (see _tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, has_spans
from variants._tiles import BLOCK, Tile, blocks, grid
from variants._tiles.backward import (
    BACKWARD,
    BackwardSchedule,
    backward_tiles,
    owning_keys_floats,
    register_backward,
    sizes,
    turned,
)
from variants._tiles.registration import Kernels
from variants._tiles.space import rows_floats


def default_tile(head_dim: int) -> Tile:
    """What fits, see above."""
    return Tile(16, 32) if head_dim <= 64 else Tile(16, 16) if head_dim <= 128 else Tile(8, 8)


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The features that kernels name as types."""
    return features.mirrored_limits(problem), features.scores(problem), features.dropout(problem)


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """CUDA kernels that initialize dQ, compute the gradients and round dQ."""
    from variants._tiles.rawkernel import tiles_kernel

    folder, chosen = "attention_backward/fa1", features_of(problem)
    names = ("bwd_fa1_initialise", "bwd_fa1", "bwd_fa1_round")
    return tuple(tiles_kernel(folder, n, problem, turned(tile), chosen, headers=BACKWARD) for n in names)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[Any, ...]:
    """Numba kernels that initialize dQ, compute the gradients and round dQ."""
    from variants.attention_backward.fa1.numba_kernel import bwd_fa1_kernels

    chosen = features.in_numba(problem, tile.Bc, tile.Br)
    kernels = bwd_fa1_kernels(problem.head_dim, turned(tile), problem.dtype, chosen)
    return kernels.bwd_fa1_initialise, kernels.bwd_fa1, kernels.bwd_fa1_round


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """Two launches, three where dQ has 16 bits; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    running_dQ = "dQ" if p.dtype == "float32" else "dQ_running"
    initialise, main, rounding = kernels(p, tile)
    row_blocks, q_len = grid(p, blocks(p.q_len, tile.Br)), np.int32(p.q_len)
    limits = features.mirrored_limits(p).argument
    main_args = ("Q", "K", "V", "O", "dO", "lse", running_dQ, "dK", "dV", *sizes(p), limits)
    launches = [
        Launch(initialise, row_blocks, BLOCK, (running_dQ, q_len)),
        Launch(main, (1, p.kv_heads_count, p.batch), BLOCK, main_args),
    ]
    buffers = []
    if running_dQ != "dQ":
        launches.append(Launch(rounding, row_blocks, BLOCK, (running_dQ, "dQ", q_len)))
        buffers.append(Buffer(running_dQ, p.q_shape, "float32"))
    return Plan(tuple(launches), tuple(buffers))


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    s = BackwardSchedule(problem, tile or default_tile(problem.head_dim))
    added_bytes = (s.visits * s.running_bytes).sum()
    read_bytes = (s.visits * (3 * s.Q_bytes + s.stat_bytes)).sum() + added_bytes + 2 * s.seen_K_bytes.sum()
    read_bytes += s.key_limit_bytes.sum()
    write_bytes = s.running_bytes.sum() + added_bytes + 2 * s.K_bytes.sum()
    if problem.dtype != "float32":
        read_bytes += s.running_bytes.sum()
        write_bytes += s.Q_bytes.sum()
    return Traffic(int(read_bytes), int(write_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """O_i, and what else a block that owns keys has."""
    return rows_floats(tile.Br, head_dim) + owning_keys_floats(head_dim, tile)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return backward_tiles(problem.head_dim, default_tile(problem.head_dim), shared_floats, has_spans(problem))


def register(registry: Registry) -> None:
    """Add `bwd-fa1-cupy` and `bwd-fa1-numba`."""
    idea = "FlashAttention-1 backward: one block per K/V head, dQ rewritten in memory once per K/V tile"
    register_backward(registry, "bwd-fa1", idea, LANGUAGES, plan, claim, tiles)
