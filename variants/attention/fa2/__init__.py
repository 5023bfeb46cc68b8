"""FlashAttention-2: blocks of rows outside, tiles of keys inside, and O leaves the chip once.

Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning", arXiv 2307.08691,
algorithm 1. One thread block owns one Q_i. It walks over K_j and V_j and keeps the running maximum m, the running
denominator l and an O that is not yet divided by l in registers; when the maximum rises, what was accumulated shrinks
by exp(m_old - m). One division at the end, and the log-sum-exp L = m + log(l) is stored for a backward pass.

Bytes, per query head: Q and O once, L once, and K and V once per row block, of which there are T_r = ceil(N_q / B_r):

    2 X_q + 4 N_q + sum_i J_i (bytes of K_j + V_j)        = 2 X_q + 4 N_q + T_r 2 X_k where nothing is masked

with J_i the tiles that have a key which row block i sees. Every copy is a run of consecutive elements (see
_tiles/sectors.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants._tiles import BLOCK, Tile, blocks, default_tile, grid
from variants._tiles.band import band
from variants._tiles.registration import Kernels, pointer_lengths, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.space import P_floats, P_rows, rows_floats, tile_space

NUMERICS = Numerics(
    scores="float32", weights="float32", functions="__expf", sums="nearest", one_score=True, divides_last=True
)
"""Nothing is rounded to 16 bits before O, which is divided once."""


def cupy_kernels(problem: Problem, tile: Tile) -> tuple[tuple[Any], tuple[np.int32, ...]]:
    """See `Kernels`."""
    from variants._tiles.rawkernel import raw_kernel, tile_options

    kernel = raw_kernel("attention/fa2", "fa2", tile_options(problem.head_dim, tile, problem.dtype))
    return (kernel,), pointer_lengths(problem)


def numba_kernels(problem: Problem, tile: Tile) -> tuple[tuple[Any], tuple[np.int32, ...]]:
    """See `Kernels`."""
    from variants.attention.fa2.numba_kernel import fa2_kernel

    return (fa2_kernel(problem.head_dim, tile, problem.dtype),), ()


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: Tile | None = None) -> Plan:
    """One launch; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    (fa2,), lengths = kernels(p, tile)
    args = ("Q", "K", "V", "O", "lse", *lengths, np.int32(p.group), np.float32(p.tau), *band(p))
    return Plan(
        launches=(Launch(fa2, grid(p, blocks(p.q_len, tile.Br)), BLOCK, args),),
        buffers=(Buffer("lse", p.lse_shape, "float32"),),
    )


def claim(problem: Problem, tile: Tile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    schedule = Schedule(p, tile or default_tile(p.head_dim))
    q_bytes = schedule.row_block_bytes(p.head_dim, p.itemsize_bytes).sum()
    lse_bytes = schedule.row_block_bytes(1, FLOAT32_BYTES).sum()
    kv_bytes = 2 * (schedule.key_visits * schedule.key_tile_bytes()).sum()
    return Traffic(read_bytes=int(q_bytes + kv_bytes), write_bytes=int(q_bytes + lse_bytes))


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Q_i, one of K_j and V_j, P, and l and m of every row."""
    return rows_floats(tile.Br + tile.Bc, head_dim) + P_floats(tile) + 2 * P_rows(tile)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return tile_space(problem.head_dim, default_tile(problem.head_dim), shared_floats)


def register(registry: Registry) -> None:
    """Add `fa2-cupy` and `fa2-numba`."""
    idea = "FlashAttention-2: Q blocks outside, O stays on chip and is written once"
    register_languages(registry, "fa2", idea, LANGUAGES, plan, claim, tiles, NUMERICS)
