"""What a block has on chip: tiles, the barriers that announce them, and which warpgroup computes what of them. The CUDA
twin is chip.cuh: same names, same order."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._hopper import ELEMENT_BYTES, padded
from variants._hopper.numba_hopper import WARPGROUP, publish_barriers
from variants._hopper.numba_slots import BARRIER_BYTES, numba_slots
from variants._mma.numba_mma import unknown
from variants.attention_backward.fa3 import CONSUMERS, LARGEST_DQ, BackwardWarpgroupTile, dQ_columns

CONSUMER_THREADS = WARPGROUP * CONSUMERS
WARPS = CONSUMER_THREADS // 32  # of consumers
THREADS = WARPGROUP + CONSUMER_THREADS
ADDER = 32  # the thread that adds dQ in a fixed order, of the producer's warpgroup
ALL_CONSUMERS = 1  # number of a named barrier
KEY_BYTES = 128  # of a box of dS^T
FRAGMENT = 128  # floats of 16 rows and 8 columns (_mma_backward/numba_dq.py)
FLOAT_BYTES = 4


class Visits(NamedTuple):
    """The tiles of rows that a block visits: those with a row that sees one of its keys, of all heads that share the
    keys. In a fixed order their numbers are negative: the last rows come first. Where causal, all blocks see these, and
    can follow each other soon."""

    first_tile: Any
    tiles: Any
    count: Any


class Visit(NamedTuple):
    """One of them."""

    number: Any
    head: Any
    """Counted from the first of those that share the keys."""
    tile: Any


@cuda.jit(device=True, forceinline=True)
def first_visit(visits):
    return Visit(int32(0), int32(0), visits.first_tile)


# A visit after this one.
@cuda.jit(device=True, forceinline=True)
def after(visit, visits):
    tile = int32(visit.tile + 1)
    is_last = tile == int32(visits.first_tile + visits.tiles)
    return Visit(int32(visit.number + 1), int32(visit.head + is_last), visits.first_tile if is_last else tile)


@functools.cache
def numba_chip(head_dim: int, tile: BackwardWarpgroupTile, in_order: bool = False) -> SimpleNamespace:
    """Constants, places on chip, barriers and visits. On `in_order`, see `order`, only the last two depend."""
    D, BR, BC, STAGES = padded(head_dim), tile.Br, tile.Bc, tile.stages
    ROWS_BYTES = BR * D * ELEMENT_BYTES  # of Q_i, and of dO_i
    KEYS_BYTES = BC * D * ELEMENT_BYTES  # of K_j, and of V_j
    STAT_BYTES = BR * FLOAT_BYTES  # of L_i, and of D_i

    # dS^T is in boxes of 64 rows: BC keys of 128 bytes each, in the order in which copies leave rows.
    DS_BOX_BYTES = BC * KEY_BYTES
    DS_BYTES = BR // 64 * DS_BOX_BYTES

    # dQ_i = dS K_j: a warpgroup has 64 rows of it. Where these are all, and there are registers for all columns beside
    # dK_j, dV_j, P and dS, the two take turns: one has dQ_i of this tile, the other of the next. Else one has the
    # columns of a box, the other those that are left.
    HALVE_ROWS = BR == 64 * CONSUMERS
    TAKE_TURNS = not HALVE_ROWS and head_dim <= LARGEST_DQ
    HALVE_COLUMNS = not HALVE_ROWS and not TAKE_TURNS
    FIRST_COLUMNS, LAST_COLUMNS = dQ_columns(head_dim)
    FRAGMENTS = head_dim // 8  # side by side
    # Which consumers' warps have parts of dQ_i of a tile, and how many tiles' parts have places on chip.
    WARPS_WITH_DQ = WARPS // CONSUMERS if TAKE_TURNS else WARPS
    TILES_OF_DQ = CONSUMERS if TAKE_TURNS else 1
    WARP_DQ_BYTES = FIRST_COLUMNS // 8 * FRAGMENT * FLOAT_BYTES  # 16 rows

    # Whether the warpgroup has a part of dQ_i of the tile that the block visits as its `n`-th.
    @cuda.jit(device=True, forceinline=True)
    def has_dQ(n, consumer):
        return not TAKE_TURNS or int32(uint32(n) % uint32(CONSUMERS)) == consumer

    # Of K_j, the first tile.
    V_PLACE = KEYS_BYTES
    Q_PLACE = 2 * KEYS_BYTES
    DO_PLACE = Q_PLACE + STAGES * ROWS_BYTES
    DS_PLACE = DO_PLACE + STAGES * ROWS_BYTES
    DQ_PLACE = DS_PLACE + 2 * DS_BYTES
    L_PLACE = DQ_PLACE + WARPS * WARP_DQ_BYTES
    DELTA_PLACE = L_PLACE + STAGES * STAT_BYTES

    # Addresses. `chip` is that of K_j.
    @cuda.jit(device=True, forceinline=True)
    def V_tile(chip):
        return uint32(chip + uint32(V_PLACE))

    @cuda.jit(device=True, forceinline=True)
    def Q_tile(chip, n):
        return uint32(chip + uint32(Q_PLACE) + uint32(n) % uint32(STAGES) * uint32(ROWS_BYTES))

    @cuda.jit(device=True, forceinline=True)
    def dO_tile(chip, n):
        return uint32(chip + uint32(DO_PLACE) + uint32(n) % uint32(STAGES) * uint32(ROWS_BYTES))

    # Tiles of dS^T are two, so that one is written while the one before is read.
    @cuda.jit(device=True, forceinline=True)
    def dS_tile(chip, n):
        return uint32(chip + uint32(DS_PLACE) + uint32(n) % uint32(2) * uint32(DS_BYTES))

    # A warp's part of dQ_i on its way out, which is 16 rows.
    @cuda.jit(device=True, forceinline=True)
    def dQ_place(chip, warp):
        return uint32(chip + uint32(DQ_PLACE) + uint32(warp) * uint32(WARP_DQ_BYTES))

    @cuda.jit(device=True, forceinline=True)
    def L_of(chip, n):
        return uint32(chip + uint32(L_PLACE) + uint32(n) % uint32(STAGES) * uint32(STAT_BYTES))

    @cuda.jit(device=True, forceinline=True)
    def delta_of(chip, n):
        return uint32(chip + uint32(DELTA_PLACE) + uint32(n) % uint32(STAGES) * uint32(STAT_BYTES))

    # Q_i comes with L_i, dO_i with D_i.
    K = numba_slots(1, 0)
    V = numba_slots(1, K.END)
    Q = numba_slots(STAGES, V.END)
    dO = numba_slots(STAGES, Q.END)
    dS = numba_slots(2, dO.END, WARPS)  # which all warps of consumers fill, and those that have a part of dQ_i read
    # Parts of dQ_i in their places, for the thread that adds them in a fixed order.
    dQ = numba_slots(TILES_OF_DQ, dS.END, WARPS_WITH_DQ)
    init_K, init_V, init_Q, init_dO, init_dS, init_dQ = K.init, V.init, Q.init, dO.init, dS.init, dQ.init

    # By one thread.
    @cuda.jit(device=True, forceinline=True)
    def init_barriers(barriers):
        init_K(barriers, 1)
        init_V(barriers, 1)
        init_Q(barriers, WARPS)
        init_dO(barriers, WARPS)
        init_dS(barriers, WARPS_WITH_DQ)
        if in_order:
            init_dQ(barriers, 1)
        publish_barriers()

    # Rows `first` to `end` - 1 see the keys.
    @cuda.jit(device=True, forceinline=True)
    def visits_of(first, end, heads):
        tile = int32(uint32(first) // uint32(BR))
        tiles = int32(int32(uint32(end + BR - 1) // uint32(BR)) - tile) if first < end else int32(0)
        if in_order:
            tile = unknown(int32(1 - tile - tiles))  # as in the CUDA twin
        return Visits(tile, tiles, int32(heads * tiles))

    @cuda.jit(device=True, forceinline=True)
    def first_row(visit):
        return int32(visit.tile * (-BR if in_order else BR))

    return SimpleNamespace(
        D=D,
        ROWS_BYTES=ROWS_BYTES,
        KEYS_BYTES=KEYS_BYTES,
        STAT_BYTES=STAT_BYTES,
        DS_BOX_BYTES=DS_BOX_BYTES,
        FRAGMENTS=FRAGMENTS,
        WARP_DQ_BYTES=WARP_DQ_BYTES,
        WARPS_WITH_DQ=WARPS_WITH_DQ,
        TAKE_TURNS=TAKE_TURNS,
        HALVE_ROWS=HALVE_ROWS,
        HALVE_COLUMNS=HALVE_COLUMNS,
        FIRST_COLUMNS=FIRST_COLUMNS,
        LAST_COLUMNS=LAST_COLUMNS,
        has_dQ=has_dQ,
        V_tile=V_tile,
        Q_tile=Q_tile,
        dO_tile=dO_tile,
        dS_tile=dS_tile,
        dQ_place=dQ_place,
        L_of=L_of,
        delta_of=delta_of,
        K=K,
        V=V,
        Q=Q,
        dO=dO,
        dS=dS,
        dQ=dQ,
        BARRIERS=(dQ if in_order else dS).END // BARRIER_BYTES,
        init_barriers=init_barriers,
        visits_of=visits_of,
        first_row=first_row,
    )
