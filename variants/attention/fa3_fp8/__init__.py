"""FlashAttention-3 with 8-bit operands: Q, K, V and P are e4m3, which tensor cores multiply in half the time.

Shah et al. 2024, arXiv 2407.08608, section 3.3. Two launches come first: one finds the largest magnitude of each head,
the other rounds Q, K and V to e4m3 with one scale per head, a power of two, and lays V out as products want it. Then
everything is as in fa3, with tiles of half as many bytes.

Bytes of the last launch, with J_i the tiles of keys that row block i sees, at the `sectors` level:

    bytes of Q_e4m3 + X_o + 4 N_q + sum_i J_i (bytes of K_j + V_j, as e4m3)     per query head
    (2 + 12 consumers) 32 T_r                   for the counter, and three scales for each warp, per query head

Where K is infinite in a head that a row block sees, some of Q and K is read besides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic
from variants._features import Feature, arguments
from variants._hopper import (
    MULTIPROCESSORS,
    ROWS_PER_REQUEST,
    WARPGROUP_ROWS,
    boxes_bytes,
    limits,
    packed_map,
    padded,
    sequences,
    turns,
    unsupported_on_hopper,
    windowed,
)
from variants._hopper.e4m3 import ByteTile, byte_tile_space, bytes_map, key_places
from variants._mma import LOG2_E
from variants._tiles import blocks
from variants._tiles.grids import L2_BYTES
from variants._tiles.registration import Kernels, register_languages
from variants._tiles.schedule import FLOAT32_BYTES, Schedule
from variants._tiles.sectors import SECTOR_BYTES, run_bytes
from variants._tiles.visits import tile_order
from variants.attention.fa3_fp8 import factors

FOLDER = "attention/fa3_fp8"
NUMERICS = Numerics(
    scores="float32", functions="fast", sums="truncated", one_score=True, divides_last=True, factors="e4m3"
)
"""O is divided once, by the sum of P before it is rounded."""
SCALES = 3
"""Number of scale factors, those of Q, K and V, that each consumer warp reads for each tile of rows."""
WARPS = 4
"""Warps per consumer warpgroup."""


def default_tile(problem: Problem) -> ByteTile:
    """The fastest on an H200 at head_dim 128, bfloat16, 16,384 keys; elsewhere what registers have room for beside O.

    Three consumers where there is room for their S, since exponentials take as long as products. The first key of a
    window, which masked tiles have to know, leaves less.
    """
    width, window = padded(problem.head_dim), windowed(problem)
    if width <= 64:
        return ByteTile(Br=192, Bc=96 if window else 128, stages=2, turns=0)
    if width == 128 and not window:
        return ByteTile(Br=192, Bc=96, stages=3, turns=0)
    sizes = ((128, 160, 160), (192, 128, 128), (256, 96, 64))
    Bc = next(narrower if window else Bc for most, Bc, narrower in sizes if width <= most)
    return ByteTile(Br=128, Bc=Bc, stages=2, turns=0)


def features_of(problem: Problem, tile: ByteTile) -> tuple[Feature, ...]:
    """The last kernel's features, in the order of its parameters."""
    return limits(problem), tile_order(problem, tile)


def cupy_kernels(problem: Problem, tile: ByteTile) -> tuple[Any, ...]:
    """CUDA kernels that find the largest magnitudes, round to e4m3 and attend."""
    from variants._hopper.products import products_of_e4m3
    from variants._hopper.rawkernel import E4M3, hopper_kernel, rounding_kernel

    head_dim, dtype = problem.head_dim, problem.dtype
    rounding = (rounding_kernel(FOLDER, name, head_dim, dtype) for name in ("largest_magnitudes", "round_factors"))
    types, text = (*features_of(problem, tile), turns(tile), sequences(problem)), products_of_e4m3(tile.Bc, head_dim)
    return (*rounding, hopper_kernel(FOLDER, "fa3_fp8", head_dim, tile, dtype, types, text, E4M3))


LANGUAGES = {"cupy": cupy_kernels}


def plan(problem: Problem, kernels: Kernels, tile: ByteTile | None = None) -> Plan:
    """Three launches; `tile`, of the last one, is the default for the problem's head_dim and mask unless given."""
    p, tile = problem, tile or default_tile(problem)
    # exp(tau s) = 2^(tau2 s) for tau > 0. Q takes the sign of tau, so that the largest s has most weight.
    tau2, sign = np.float32(abs(p.tau) * LOG2_E if p.tau else 1.0), np.float32(np.sign(p.tau))
    largest_magnitudes, round_factors, fa3_fp8 = kernels(p, tile)
    q_heads, kv_heads, row_tiles = p.batch * p.heads, p.batch * p.kv_heads_count, blocks(p.q_len, tile.Br)
    D = padded(p.head_dim)
    maps = (
        bytes_map("Q_e4m3", D, p.q_len, q_heads, D, tile.Br),
        bytes_map("K_e4m3", D, p.kv_len, kv_heads, D, tile.Bc),
        bytes_map("V_e4m3", key_places(p), p.head_dim, kv_heads, tile.Bc, D),
        packed_map("O", p, 1),
    )
    # Packs of one head, of which a warpgroup has all rows.
    packs = q_heads, p.group, p.heads, WARPGROUP_ROWS.bit_length() - 1, row_tiles, heads_at_once(p)
    sizes = (np.int32(p.q_len), np.int32(p.kv_len), np.int32(p.head_dim), tuple(np.int32(n) for n in packs))
    launch = Launch(
        fa3_fp8,
        (min(q_heads * row_tiles, MULTIPROCESSORS),),
        (tile.threads,),
        (*maps, "scales", "Q", "K", "lse", *sizes, tau2, sign, *arguments(features_of(p, tile))),
        shared_bytes=tile.shared_bytes(p.head_dim),
    )
    return Plan(
        launches=(*factors.launches(p, largest_magnitudes, round_factors, sign), launch),
        buffers=(Buffer("lse", p.lse_shape, "float32"), *factors.buffers(p)),
    )


def heads_at_once(problem: Problem) -> int:
    """Query heads that blocks work on at once, at least those that share K and V."""
    kv_bytes = problem.kv_len * padded(problem.head_dim) + problem.head_dim * key_places(problem)
    return min(max(L2_BYTES // kv_bytes, 1) * problem.group, problem.batch * problem.heads)


def claim(problem: Problem, tile: ByteTile | None = None) -> Traffic:
    """The bytes above and those of `factors`, where no element of K is infinite."""
    p, tile = problem, tile or default_tile(problem)
    D, schedule, first = padded(p.head_dim), Schedule(p, tile), factors.bytes_of_launches(p)
    q_heads = p.batch * p.heads
    # Boxes arrive whole, with zeros where there are no rows or keys.
    rows = len(schedule.first_rows) * tile.Br
    work_bytes = SECTOR_BYTES * q_heads * len(schedule.first_rows)
    read_bytes = q_heads * D * (rows + 2 * tile.Bc * int(schedule.key_visits.sum()))
    read_bytes += (1 + SCALES * WARPS * tile.consumers) * work_bytes
    first_rows, eights = np.arange(q_heads, dtype=np.int64)[:, None] * p.q_len, np.arange(0, p.q_len, ROWS_PER_REQUEST)
    O_bytes = boxes_bytes(first_rows, np.int64(p.q_len), p.head_dim).sum()
    lse_bytes = run_bytes(first_rows + eights, np.minimum(ROWS_PER_REQUEST, p.q_len - eights), FLOAT32_BYTES).sum()
    written_bytes = int(O_bytes + lse_bytes) + work_bytes
    return Traffic(first.read_bytes + read_bytes, first.write_bytes + written_bytes)


def tiles(problem: Problem) -> list[dict[str, int]]:
    """What may be chosen, the default first."""
    return byte_tile_space(problem.head_dim, default_tile(problem))


def register(registry: Registry) -> None:
    """Add `fa3-fp8-cupy`."""
    register_languages(
        registry,
        "fa3-fp8",
        "FlashAttention-3 with 8-bit operands: e4m3, one scale per head, wgmma at twice the rate",
        LANGUAGES,
        plan,
        claim,
        tiles,
        NUMERICS,
        supports=unsupported_on_hopper,
        tile_class=ByteTile,
    )
