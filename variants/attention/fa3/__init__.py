"""FlashAttention-3: some warps only fetch, the others multiply, and softmax has the products of another tile beside it.

Shah et al. 2024, arXiv 2407.08608, algorithms 1 and 2. The loops are those of FlashAttention-2; what is new is who does
what, and when. One lane of a producer warpgroup issues copies of whole tiles (TMA). Two or three consumer warpgroups of
64 rows each wait for them at mbarriers, multiply them where they lie (wgmma), and issue S of the next tile of keys
before they wait for P V of this one. A block stays on its multiprocessor and takes one tile of rows after the other
from a counter, the longest ones first.

Bytes, with J_i the tiles of keys that row block i sees, at the `sectors` level:

    2 X_q + 4 N_q + sum_i J_i (bytes of K_j + V_j)                              per query head
    2 * 32 T_r                                                                  for the counter, per query head

A copy asks for each row of a box by itself, so where rows are no whole sectors, at head_dim 8, 24, 40, ..., every
second one touches a sector that the row before it has touched. lse goes out in eights: 8 neighbouring rows are one
request.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants._hopper import (
    MULTIPROCESSORS,
    WARPGROUP_ROWS,
    WarpgroupTile,
    boxes_bytes,
    padded,
    rows_map,
    unsupported_on_hopper,
    warpgroup_tile_space,
)
from variants._mma import LOG2_E
from variants._tiles import blocks
from variants._tiles.band import band
from variants._tiles.registration import Kernels, pointer_lengths, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.sectors import SECTOR_BYTES, run_bytes

NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""
ROWS_PER_REQUEST = 8
"""Of lse: those of which a warp has one row each in a quarter of its lanes."""
L2_BYTES = 32 * 2**20
"""Of K and V of the heads that blocks are at work on at once, where a mask makes some rows longer than others: what
stays in the 50 MB of L2 of an H200 beside Q and O."""


def default_tile(problem: Problem) -> WarpgroupTile:
    """The fastest on an H200 at head_dim 64, 96, 128, 192 and 256, bfloat16, 4096 keys and more.

    As many keys as registers have room for beside O. At head_dim 64 a third consumer has room, too; beyond 192 the
    first key of a window, which masked tiles have to know, leaves room for fewer.
    """
    width = padded(problem.head_dim)
    if width <= 64:
        return WarpgroupTile(Br=192, Bc=96 if masked(problem) else 80, stages=2, turns=0)
    widest = 64 if windowed(problem) else 80
    Bc = next(Bc for most, Bc in ((96, 144), (128, 128), (192, 112), (256, widest)) if width <= most)
    return WarpgroupTile(Br=128, Bc=Bc, stages=2, turns=1)


def cupy_kernels(problem: Problem, tile: WarpgroupTile) -> tuple[tuple[Any], tuple[np.int32, ...]]:
    """See `Kernels`."""
    from variants._hopper.rawkernel import hopper_kernel

    flags = {"MASKED": masked(problem), "WINDOWED": windowed(problem)}
    kernel = hopper_kernel("attention/fa3", "fa3", problem.head_dim, tile, problem.dtype, **flags)
    return (kernel,), pointer_lengths(problem)


LANGUAGES = {"cupy": cupy_kernels}


def plan(problem: Problem, kernels: Kernels, tile: WarpgroupTile | None = None) -> Plan:
    """One launch; `tile` is the default for the problem's head_dim and mask unless given."""
    p, tile = problem, tile or default_tile(problem)
    # exp(tau s) = 2^(tau2 s) for tau > 0. The kernel gives Q the sign of tau, so that the largest s has most weight.
    tau2, sign = np.float32(abs(p.tau) * LOG2_E if p.tau else 1.0), np.int32(np.sign(p.tau))
    (fa3,), lengths = kernels(p, tile)
    q_heads, kv_heads, row_tiles = p.batch * p.heads, p.batch * p.kv_heads_count, blocks(p.q_len, tile.Br)
    maps = (
        rows_map("Q", p, q_heads, p.q_len, tile.Br),
        rows_map("K", p, kv_heads, p.kv_len, tile.Bc),
        rows_map("V", p, kv_heads, p.kv_len, tile.Bc),
        rows_map("O", p, q_heads, p.q_len, WARPGROUP_ROWS),
    )
    work = (np.int32(n) for n in (q_heads, p.group, row_tiles, heads_at_once(p)))
    launch = Launch(
        fa3,
        (min(q_heads * row_tiles, MULTIPROCESSORS),),
        (tile.threads,),
        (*maps, "lse", *lengths, *work, tau2, sign, *band(p)),
        shared_bytes=tile.shared_bytes(p.head_dim),
    )
    return Plan(launches=(launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def masked(problem: Problem) -> bool:
    """Whether rows see other keys than all."""
    return bool(problem.mask.parts)


def windowed(problem: Problem) -> bool:
    """Whether some rows do not see the first keys."""
    return any(left is not None for left, _ in (part.limits for part in problem.mask.parts))


def heads_at_once(problem: Problem) -> int:
    """Query heads that blocks work on at once, at least those that share K and V."""
    kv_bytes = 2 * problem.kv_len * problem.head_dim * problem.itemsize_bytes
    return min(max(L2_BYTES // kv_bytes, 1) * problem.group, problem.batch * problem.heads)


def claim(problem: Problem, tile: WarpgroupTile | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, tile = problem, tile or default_tile(problem)
    schedule = Schedule(p, tile)
    q_heads, kv_heads = (np.arange(n, dtype=np.int64)[:, None] for n in (p.batch * p.heads, p.batch * p.kv_heads_count))
    q_bytes = boxes_bytes(q_heads * p.q_len, np.int64(p.q_len), p.head_dim).sum()
    keys = np.minimum(tile.Bc, p.kv_len - schedule.first_keys)
    tile_bytes = p.group * boxes_bytes(kv_heads * p.kv_len + schedule.first_keys, keys, p.head_dim).sum(axis=0)
    kv_bytes = 2 * (schedule.key_visits * tile_bytes).sum()
    eights = np.arange(0, p.q_len, ROWS_PER_REQUEST, dtype=np.int64)
    eight_rows = np.minimum(ROWS_PER_REQUEST, p.q_len - eights)
    lse_bytes = run_bytes(q_heads * p.q_len + eights, eight_rows, FLOAT32_BYTES).sum()
    counter_bytes = SECTOR_BYTES * p.batch * p.heads * len(schedule.first_rows)
    return Traffic(int(q_bytes + kv_bytes + counter_bytes), int(q_bytes + lse_bytes + counter_bytes))


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, the default first."""
    return warpgroup_tile_space(problem.head_dim, default_tile(problem))


def register(registry: Registry) -> None:
    """Add `fa3-cupy`."""
    register_languages(
        registry,
        "fa3",
        "FlashAttention-3: a producer warp, TMA and wgmma; softmax beside the products of another tile",
        LANGUAGES,
        plan,
        claim,
        tiles,
        NUMERICS,
        supports=unsupported_on_hopper,
        tile_class=WarpgroupTile,
    )
