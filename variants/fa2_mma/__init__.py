"""FlashAttention-2 on tensor cores: mma.sync, tiles of keys on their way while others are multiplied, P in registers.

The algorithm and its bytes are those of `fa2`: Dao 2023, arXiv 2307.08691, algorithm 1.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np

from harness.problem import Problem
from harness.variant import Buffer, Launch, Numerics, Plan, Registry, Traffic, Variant
from variants._mma import LOG2_E, SHARED_BYTES, MmaTile, copied_at_once, unsupported_mma
from variants._tiles import blocks, grid
from variants._tiles.schedule import FLOAT32_BYTES, Schedule

NUMERICS = Numerics(scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True)
THREADS_PER_WARP = 32


def default_tile(head_dim: int) -> MmaTile:
    if head_dim <= 128:
        return MmaTile(Br=128, Bc=64, warps=4, stages=2)
    return MmaTile(Br=128, Bc=32, warps=8, stages=2)


def plan(problem: Problem, backend: str, tile: MmaTile | None = None) -> Plan:
    p, tile = problem, tile or default_tile(problem.head_dim)
    tau2 = np.float32(abs(p.tau) * LOG2_E if p.tau else 1.0)
    sign = np.int32(np.sign(p.tau))
    from variants._mma.rawkernel import mma_options, raw_kernel

    kernel = raw_kernel("fa2_mma", "fa2_mma", mma_options(p.head_dim, tile, p.dtype))
    args = ("Q", "K", "V", "O", "lse", np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.group), tau2, sign, np.int32(p.causal))
    block = (THREADS_PER_WARP * tile.warps,)
    return Plan(
        launches=(Launch(kernel, grid(p, blocks(p.q_len, tile.Br)), block, args, tile.shared_bytes(p.head_dim)),),
        buffers=(Buffer("lse", p.lse_shape, "float32"),),
    )
