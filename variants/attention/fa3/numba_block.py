"""Tiles of rows that a block takes, and the barriers and buffers that both roles share. The CUDA twins are
row_tiles.cuh and pipeline.cuh in _hopper."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._hopper import ELEMENT_BYTES, WarpgroupTile
from variants._hopper.numba_hopper import WARPGROUP, init_barrier, publish_barriers
from variants._hopper.numba_limits import WarpgroupLimits

INSPECTORS = 3
"""Warps that look through V."""


@dataclass(frozen=True)
class NumbaTerms:
    """Which score terms a problem has, and whether it has sinks."""

    terms: tuple[str, ...] = ()
    """Names of the features, the first one first."""
    sinks: bool = False


class Packs(NamedTuple):
    """Heads that share K and V are packed: a warpgroup has 1 << head_shift rows of each, one head after the other."""

    count: Any
    """Number of packs in all sequences."""
    per_kv_head: Any
    per_sequence: Any
    head_shift: Any
    row_tiles: Any
    """Tiles of rows of each pack."""
    at_once: Any
    """Packs whose K and V stay in L2 together."""


class Problem(NamedTuple):
    """What does not change during a launch."""

    q_len: Any
    kv_len: Any
    packs: Any
    limits: Any


class RowTile(NamedTuple):
    """A tile of rows, and the tiles of keys of which some row sees a key: first to end - 1."""

    pack: Any
    first_row: Any
    """Of each head of the pack."""
    first: Any
    end: Any


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
    HIDES_FIRST, HIDES_LAST, first_seen, end_seen = limits.HIDES_FIRST, limits.HIDES_LAST, limits.first, limits.end
    CONSUMER_THREADS = WARPGROUP * CONSUMERS
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

    # Tiles that so many keys take.
    @cuda.jit(device=True, forceinline=True)
    def tiles_of(keys):
        return int32(uint32(keys + BC - 1) // uint32(BC))

    # Rows of each head in a tile of rows.
    @cuda.jit(device=True, forceinline=True)
    def head_rows(packs):
        return int32(int32(CONSUMERS) << packs.head_shift)

    # Tile `index` of all. Where the last keys are hidden from some rows, the rows that may see most keys, the last
    # ones, come first, of as many packs at once as have K and V in L2: short work is left for the end, when not all
    # blocks find some.
    @cuda.jit(device=True, forceinline=True)
    def row_tile(index, p):
        index, count = uint32(index), uint32(p.packs.count)
        row_tiles, at_once = uint32(p.packs.row_tiles), uint32(p.packs.at_once)
        if HIDES_LAST:
            first_pack = uint32(index // uint32(at_once * row_tiles) * at_once)
            together = uint32(min(at_once, uint32(count - first_pack)))
            inside = uint32(index - first_pack * row_tiles)
            pack = int32(first_pack + inside % together)
            first_row = int32(int32(row_tiles - uint32(1) - inside // together) * head_rows(p.packs))
            end_key = end_seen(p, int32(min(int32(first_row + head_rows(p.packs)), p.q_len) - 1))
        else:
            pack = int32(index // row_tiles)
            first_row = int32(int32(index % row_tiles) * head_rows(p.packs))
            end_key = p.kv_len
        first = int32(0)
        if HIDES_FIRST:
            first = int32(uint32(first_seen(p, first_row)) // uint32(BC))
        return RowTile(pack, first_row, first, tiles_of(end_key))

    # The tiles of keys that all rows of a tile see all of: from the first to before the end.
    @cuda.jit(device=True, forceinline=True)
    def whole_tiles(tile, p):
        first, end = int32(0), int32(tile.end - 1)  # the last tile of keys may not be full
        if HIDES_LAST:
            end = int32(uint32(end_seen(p, tile.first_row)) // uint32(BC))
        if HIDES_FIRST:
            last_row = int32(min(int32(tile.first_row + head_rows(p.packs)), p.q_len) - 1)
            first = tiles_of(first_seen(p, last_row))
        return first, end

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
        row_tile=row_tile,
        head_rows=head_rows,
        whole_tiles=whole_tiles,
    )
