"""FlashAttention-2 on tensor cores: tiles of keys arrive while others are multiplied, and P never leaves registers.

The algorithm is that of `fa2` (Dao 2023, arXiv 2307.08691, algorithm 1), and so are its bytes, per query head:

    2 X_q + 4 N_q + sum_i J_i (bytes of K_j + V_j)        = 2 X_q + 4 N_q + T_r 2 X_k where nothing is masked

with J_i the tiles of keys that row block i sees. What differs is how many elements a lane moves at once, and with them
how often a run that does not start at a sector's first byte touches one sector more: the 16 bytes of cp.async, or as
many as rows keep aligned, hence 512 bytes per request where head_dim is a multiple of 8. L goes 4 bytes per lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants._mma import LOG2_E, MmaTile, elements_per_copy, mma_tile_space, unsupported_on_tensor_cores
from variants._tiles import blocks, grid
from variants._tiles.band import band
from variants._tiles.registration import Kernels, pointer_lengths, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule

NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""


def default_tile(head_dim: int) -> MmaTile:
    """The fastest of `tiles` on an H200 at head_dim 64 and 128, long sequences, bfloat16.

    A warp owns 32 rows, so that each fragment of K and V that it loads is multiplied twice; beyond 128 elements per row
    O would not leave room for S, and it owns 16.
    """
    if head_dim <= 64:
        return MmaTile(Br=128, Bc=96, warps=4, stages=2)
    if head_dim <= 128:
        return MmaTile(Br=128, Bc=48, warps=4, stages=2)
    return MmaTile(Br=128, Bc=32, warps=8, stages=2)


def cupy_kernels(problem: Problem, tile: MmaTile) -> tuple[tuple[Any], tuple[np.int32, ...]]:
    """See `Kernels`."""
    from variants._mma.rawkernel import COMMON_WITH_TILES, mma_options
    from variants._tiles.rawkernel import raw_kernel

    options = mma_options(problem.head_dim, tile, problem.dtype)
    return (raw_kernel("attention/fa2_mma", "fa2_mma", options, COMMON_WITH_TILES),), pointer_lengths(problem)


def numba_kernels(problem: Problem, tile: MmaTile) -> tuple[tuple[Any], tuple[np.int32, ...]]:
    """See `Kernels`."""
    from variants.attention.fa2_mma.numba_kernel import fa2_mma_kernel

    return (fa2_mma_kernel(problem.head_dim, tile, problem.dtype),), ()


LANGUAGES = {"cupy": cupy_kernels, "numba": numba_kernels}


def plan(problem: Problem, kernels: Kernels, tile: MmaTile | None = None) -> Plan:
    """One launch; `tile` is `default_tile(head_dim)` unless given."""
    p, tile = problem, tile or default_tile(problem.head_dim)
    # exp(tau s) = 2^(tau2 s) for tau > 0. The kernel gives Q the sign of tau, so that the largest s has most weight.
    tau2, sign = np.float32(abs(p.tau) * LOG2_E if p.tau else 1.0), np.int32(np.sign(p.tau))
    (fa2_mma,), lengths = kernels(p, tile)
    launch = Launch(
        fa2_mma,
        grid(p, blocks(p.q_len, tile.Br)),
        (32 * tile.warps,),
        ("Q", "K", "V", "O", "lse", *lengths, np.int32(p.group), tau2, sign, *band(p)),
        shared_bytes=tile.shared_bytes(p.head_dim),
    )
    return Plan(launches=(launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def claim(problem: Problem, tile: MmaTile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p = problem
    schedule, at_once = Schedule(p, tile or default_tile(p.head_dim)), elements_per_copy(p.head_dim)
    q_bytes = schedule.row_block_bytes(p.head_dim, p.itemsize_bytes, at_once).sum()
    lse_bytes = schedule.row_block_bytes(1, FLOAT32_BYTES).sum()
    kv_bytes = 2 * (schedule.key_visits * schedule.key_tile_bytes(at_once)).sum()
    return Traffic(read_bytes=int(q_bytes + kv_bytes), write_bytes=int(q_bytes + lse_bytes))


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, `default_tile(head_dim)` first."""
    return mma_tile_space(problem.head_dim, default_tile(problem.head_dim))


def register(registry: Registry) -> None:
    """Add `fa2-mma-cupy` and `fa2-mma-numba`."""
    register_languages(
        registry,
        "fa2-mma",
        "FlashAttention-2 on tensor cores: asynchronous copies, P in registers",
        LANGUAGES,
        plan,
        claim,
        tiles,
        NUMERICS,
        supports=unsupported_on_tensor_cores,
        tile_class=MmaTile,
    )
