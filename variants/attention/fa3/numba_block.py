"""The barriers and buffers that both roles share. The CUDA twin is pipeline.cuh in _hopper."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, uint32

from variants._hopper import ELEMENT_BYTES, WarpgroupTile
from variants._hopper.numba_hopper import WARPGROUP, init_barrier, publish_barriers
from variants._hopper.numba_limits import WarpgroupLimits

INSPECTORS = 3
"""Warps that look through V."""


class OnChip(NamedTuple):
    """Addresses in shared memory: of Q_i, of the stages of K and of V, and of the barriers."""

    Q_tile: Any
    K_tiles: Any
    V_tiles: Any
    barriers: Any


@functools.cache
def numba_block(D: int, tile: WarpgroupTile, limits: WarpgroupLimits) -> SimpleNamespace:
    """For rows of `D` elements, padded."""
    BR, BC, CONSUMERS, STAGES = tile.Br, tile.Bc, tile.consumers, tile.stages
    CONSUMER_THREADS, HIDES_LAST = WARPGROUP * CONSUMERS, limits.HIDES_LAST
    Q_BYTES = BR * D * ELEMENT_BYTES
    KV_BYTES = BC * D * ELEMENT_BYTES  # of K_j, and of V_j
    # From Q_i to O_i on its way out, which has a place of its own where there is room, so that the next Q_i arrives
    # meanwhile.
    O_APART = tile.keeps_O_apart(D)
    O_PLACE = Q_BYTES + 2 * STAGES * KV_BYTES if O_APART else 0

    # Where barriers lie, of 8 bytes each. Full: what is awaited there has come. Empty: all consumers are done with it.
    # K and V have one for each stage, Q one for each consumer, of its rows of Q_i. INDEX is no barrier: which tile of
    # rows comes next.
    K_FULL, K_EMPTY, V_FULL, V_EMPTY = (8 * STAGES * number for number in range(4))
    Q_FULL, Q_EMPTY = (8 * (4 * STAGES + CONSUMERS * number) for number in range(2))
    WORK_FULL, WORK_EMPTY, INDEX = (8 * (4 * STAGES + 2 * CONSUMERS + number) for number in range(3))
    # Of inspection.cuh, for each stage: INSPECTED are barriers, MARKS and FOUND are none.
    INSPECTED, MARKS, FOUND = (8 * (4 * STAGES + 2 * CONSUMERS + 3 + STAGES * number) for number in range(3))
    BARRIERS = 4 * STAGES + 2 * CONSUMERS + 3 + STAGES * (2 + (INSPECTORS + 1) // 2)

    # Of the tile of keys that is a block's `step`-th: where it lies, and the parity of the phase in which it is there.
    @cuda.jit(device=True, forceinline=True)
    def stage(step):
        return uint32(step) % uint32(STAGES)

    @cuda.jit(device=True, forceinline=True)
    def phase(step):
        return uint32(uint32(step) // uint32(STAGES)) & uint32(1)

    @cuda.jit(device=True, forceinline=True)
    def barrier_of(barriers, kind, step):
        return uint32(barriers + kind + stage(step) * uint32(8))

    @cuda.jit(device=True, forceinline=True)
    def tile_of(tiles, step):
        return uint32(tiles + stage(step) * uint32(KV_BYTES))

    # Of dynamic shared memory and the barriers. Tiles with swizzled rows begin at multiples of 1024 bytes.
    @cuda.jit(device=True, forceinline=True)
    def chip_at(dynamic, barriers):
        Q_tile = uint32((dynamic + uint32(1023)) & uint32(0xFFFFFC00))
        K_tiles = uint32(Q_tile + uint32(Q_BYTES))
        return OnChip(Q_tile, K_tiles, uint32(K_tiles + uint32(STAGES * KV_BYTES)), barriers)

    # By one thread.
    @cuda.jit(device=True, forceinline=True)
    def init_barriers(barriers):
        for s in range(STAGES):
            init_barrier(barrier_of(barriers, K_FULL, s), 1)
            init_barrier(barrier_of(barriers, V_FULL, s), 1)
            init_barrier(barrier_of(barriers, K_EMPTY, s), CONSUMERS)
            init_barrier(barrier_of(barriers, V_EMPTY, s), CONSUMERS + (INSPECTORS if HIDES_LAST else 0))
            init_barrier(barrier_of(barriers, INSPECTED, s), INSPECTORS)
        for w in range(CONSUMERS):
            init_barrier(uint32(barriers + Q_FULL + 8 * w), 1)
            init_barrier(uint32(barriers + Q_EMPTY + 8 * w), 1)
        init_barrier(uint32(barriers + WORK_FULL), 1)
        init_barrier(uint32(barriers + WORK_EMPTY), CONSUMER_THREADS)
        publish_barriers()

    return SimpleNamespace(
        CONSUMER_THREADS=CONSUMER_THREADS,
        Q_BYTES=Q_BYTES,
        KV_BYTES=KV_BYTES,
        O_APART=O_APART,
        O_PLACE=O_PLACE,
        BARRIERS=BARRIERS,
        K_FULL=K_FULL,
        K_EMPTY=K_EMPTY,
        V_FULL=V_FULL,
        V_EMPTY=V_EMPTY,
        Q_FULL=Q_FULL,
        Q_EMPTY=Q_EMPTY,
        WORK_FULL=WORK_FULL,
        WORK_EMPTY=WORK_EMPTY,
        INDEX=INDEX,
        INSPECTED=INSPECTED,
        MARKS=MARKS,
        FOUND=FOUND,
        stage=stage,
        phase=phase,
        barrier_of=barrier_of,
        tile_of=tile_of,
        chip_at=chip_at,
        init_barriers=init_barriers,
    )
