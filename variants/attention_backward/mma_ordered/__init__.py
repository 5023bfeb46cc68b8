"""FlashAttention-2's backward pass on tensor cores with dQ in a launch of its own: no atomics, always the same bits.

dK and dV are computed as in `bwd-mma` (_mma_backward/keys.cu). Then blocks of rows compute S, P and dP once more,
the other way round: dS is in registers as dQ_i += dS K_j takes it, and never in shared memory. Seven products in place
of five (Dao 2023, arXiv 2307.08691, algorithm 2, in two loop orders).

Bytes, per query head, n_r rows in a block and J_i the tiles with a key that row block i sees:

    prepare     O, dO, lse read, L = log2(e) lse and D written                      2 X_q + 4 N_q, 8 N_q
    of keys     sum_i J_i (Q_i + dO_i + 8 n_r of L and D) read
                per K/V head: K_j, V_j read, dK_j, dV_j written                     2 X_k, 2 X_k
    of rows     Q, dO, L, D and sum_i J_i (K_j + V_j) read, dQ written              2 X_q + 8 N_q + T_r 2 X_k, X_q

the last with tiles of its own. Of K and V, tiles that no row sees a key of are left out. Where the mask is no band, of
keys reads 8 N_k per K/V head besides, which rows see each key, and of rows 8 N_q, which keys each row sees. All copies
are runs of consecutive elements, with up to 16 bytes per lane (see _tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

from harness import Buffer, Launch, Plan, Problem, Registry, Traffic
from variants import _features as features
from variants._features import Feature, arguments
from variants._mma import MmaTile, unsupported_on_tensor_cores
from variants._mma_backward import (
    FRAGMENTS,
    NUMERICS,
    MmaBackwardSchedule,
    end_kernel,
    keys_kernel,
    keys_launch,
    mma_kernel,
    prepare_bytes,
    prepare_launch,
    scalars,
    size_options,
)
from variants._mma_backward.tile import BackwardMmaTile, default_owning_keys, row_bytes, tiles_owning_keys
from variants._tiles import blocks
from variants._tiles.grids import grid_across
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES


def tile_owning_rows(head_dim: int) -> MmaTile:
    """The tile of the launch that computes dQ: as many rows per warp as registers allow beside dQ, S and dP."""
    if head_dim <= 64:
        return MmaTile(Br=128, Bc=96, warps=4, stages=2)
    return MmaTile(Br=128, Bc=32, warps=4 if head_dim <= 128 else 8, stages=2)


def shared_bytes_owning_rows(head_dim: int) -> int:
    """Q_i and dO_i, `stages` times K_j and V_j, and L_i and D_i."""
    tile = tile_owning_rows(head_dim)
    return 2 * (tile.Br + tile.stages * tile.Bc) * row_bytes(head_dim) + 2 * FLOAT32_BYTES * tile.Br


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The features of the kernel that computes dQ, in the order of its parameters."""
    return features.limits(problem), features.dropout(problem)


def cupy_kernels(problem: Problem, tile: BackwardMmaTile) -> tuple[Any, ...]:
    """CUDA kernels that compute D, then dK and dV, then dQ."""
    rows = tile_owning_rows(problem.head_dim)
    sizes = {**size_options(problem, rows), "STAGES": rows.stages}
    folder, name = "attention_backward/mma_ordered", "bwd_mma_of_rows"
    return (
        end_kernel(problem, "prepare", adds_dQ=False),
        keys_kernel(problem, tile, adds_dQ=False),
        mma_kernel(folder, "kernel.cu", name, problem, sizes, features_of(problem), FRAGMENTS),
    )


def numba_kernels(problem: Problem, tile: BackwardMmaTile) -> tuple[Any, ...]:
    """Numba kernels that compute D, then dK and dV, then dQ."""
    from variants._mma_backward.numba_ends import end_kernels
    from variants._mma_backward.numba_keys import keys_kernel as numba_keys_kernel
    from variants.attention_backward.mma_ordered.numba_kernel import rows_kernel

    prepare = end_kernels(problem.head_dim, problem.dtype, None, False, adds_dQ=False).bwd_mma_prepare
    of_rows = rows_kernel(problem, tile_owning_rows(problem.head_dim))
    return prepare, numba_keys_kernel(problem, tile, adds_dQ=False), of_rows


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}
TAKES = (*features.SPAN_FEATURES, features.DROPOUT_FEATURE)


def plan(problem: Problem, kernels: Kernels, tile: BackwardMmaTile | None = None) -> Plan:
    """Three launches; `tile`, of the one that computes dK and dV, is `default_owning_keys(head_dim)` unless given."""
    p, tile, rows = problem, tile or default_owning_keys(problem.head_dim), tile_owning_rows(problem.head_dim)
    prepare, of_keys, of_rows = kernels(p, tile)
    args = ("Q", "K", "V", "dO", "L", "D", "dQ", *scalars(p), *arguments(features_of(p)))
    row_blocks = grid_across(p, blocks(p.q_len, rows.Br))  # the last rows start first
    return Plan(
        launches=(
            prepare_launch(p, prepare, adds_dQ=False),
            keys_launch(p, of_keys, tile, adds_dQ=False),
            Launch(of_rows, row_blocks, (32 * rows.warps,), args, shared_bytes_owning_rows(p.head_dim)),
        ),
        buffers=(Buffer("L", p.lse_shape, "float32"), Buffer("D", p.lse_shape, "float32")),
    )


def claim(problem: Problem, tile: BackwardMmaTile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    keys = MmaBackwardSchedule(problem, tile or default_owning_keys(problem.head_dim))
    rows = MmaBackwardSchedule(problem, tile_owning_rows(problem.head_dim))
    read_bytes, write_bytes = prepare_bytes(problem)
    read_bytes += int((keys.visits * (keys.copied_bytes("Q", "dO") + 2 * keys.stat_bytes)).sum())
    read_bytes += int(keys.seen_K_and_V_bytes.sum())
    read_bytes += int((rows.copied_bytes("Q", "dO") + 2 * rows.stat_bytes).sum())
    read_bytes += int(2 * (rows.key_visits * rows.copied_key_tile_bytes).sum())
    read_bytes += int(keys.key_limit_bytes.sum() + rows.limit_bytes().sum())
    write_bytes += int(keys.dK_and_dV_bytes + rows.dQ_bytes.sum())
    return Traffic(read_bytes, write_bytes)


def register(registry: Registry) -> None:
    """Add `bwd-mma-ordered-cupy` and `bwd-mma-ordered-numba`."""
    register_languages(
        registry,
        "bwd-mma-ordered",
        "FlashAttention-2 backward on tensor cores with dQ in a launch of its own: no atomics, seven products",
        LANGUAGES,
        plan,
        claim,
        tiles_owning_keys,
        NUMERICS,
        supports=unsupported_on_tensor_cores,
        tile_class=BackwardMmaTile,
        operation="attention-backward",
        takes=TAKES,
    )
