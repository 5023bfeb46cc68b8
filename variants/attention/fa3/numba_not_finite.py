"""V that is not finite, where a tile holds keys which only some rows see. The CUDA twin is not_finite.cuh."""

from __future__ import annotations

import functools
import math
from typing import Any

from numba import cuda, int32, uint32

from variants._hopper import ELEMENT_BYTES, WarpgroupTile, padded
from variants._hopper.numba_hopper import (
    WARPGROUP,
    numba_hopper,
    publish_to_async,
    sync_threads,
)
from variants._hopper.numba_limits import WarpgroupLimits
from variants._hopper.numba_softmax import numba_softmax
from variants._mma.numba_mma import ALL_LANES, lane_index, load_shared, numba_mma, store_shared, thread_index, unknown
from variants._mma.numba_unrolled import unrolled

ALL_CONSUMERS = 1  # a named barrier
load_word, load_piece, store_piece = load_shared(4), load_shared(16), store_shared(16)


# Registers have no index at run time: what is wanted first moves by the first 4 of `count`, in a ring.
@functools.cache
def move_up(count: int) -> Any:
    """Device function for a local array of so many items."""

    @cuda.jit(device=True, forceinline=True)
    def move_down(i, ring):
        ring[i] = ring[i + 4]

    move_others = unrolled(count - 4, move_down)

    @cuda.jit(device=True, forceinline=True)
    def move(ring):
        first = ring[0], ring[1], ring[2], ring[3]
        move_others(ring)
        ring[count - 4], ring[count - 3], ring[count - 2], ring[count - 1] = first

    return move


@functools.cache
def numba_not_finite(head_dim: int, tile: WarpgroupTile, limits: WarpgroupLimits, dtype: str) -> Any:
    """The device function `take_not_finite`; see `numba_block`."""
    BC, CONSUMER_THREADS = tile.Bc, WARPGROUP * tile.consumers
    D = padded(head_dim)
    PIECES = BC * D * ELEMENT_BYTES // 16  # of V_j
    TD = head_dim // 8  # tiles of 8 elements of O
    hopper, mma = numba_hopper(D), numba_mma(dtype)
    COLUMNS, ROW_BYTES, piece_of_row = hopper.COLUMNS, hopper.ROW_BYTES, hopper.piece_of_row
    unpacked, not_finite, finite_or_zero = mma.unpacked, mma.not_finite, mma.finite_or_zero
    keys_seen = numba_softmax(head_dim, BC, limits, dtype).keys_seen
    move_up_weights, move_up_outputs = move_up(BC // 4), move_up(head_dim // 2)

    # O += p v for each v of a tile of so many keys that is NaN or infinity, in rows that see its key. It is to be
    # short, and need not be fast.
    @cuda.jit(device=True, forceinline=True)
    def add_not_finite(O, P, V_tile, keys, first, end):
        lane = lane_index()
        quarter = int32(lane & uint32(3))
        for j in range(int32(0), unknown(TD), int32(1)):
            box, piece = uint32(j) // uint32(COLUMNS // 8), uint32(j) % uint32(COLUMNS // 8)
            column = uint32(V_tile + box * uint32(BC * ROW_BYTES) + uint32(4 * quarter))
            for first_key in range(int32(0), unknown(BC), int32(16)):
                for key in range(first_key, int32(min(int32(first_key + 16), keys)), int32(1)):
                    both = load_word(uint32(column + piece_of_row(key, piece)))
                    if cuda.any_sync(ALL_LANES, not_finite(both)):
                        v0, v1 = unpacked(both)
                        for h in range(2):
                            # Of the four lanes that share a row each has two keys of 8.
                            weights = int32(P[2 + h] if key & 8 else P[h])
                            source = int32((lane & uint32(28)) | uint32((key & 7) >> 1))
                            low, high = unpacked(uint32(cuda.shfl_sync(ALL_LANES, weights, source)))
                            p = high if key & 1 else low
                            sees = first[h] <= int32(key - 2 * quarter) < end[h]
                            if sees and not math.isfinite(v0):
                                O[2 * h] += p * v0
                            if sees and not math.isfinite(v1):
                                O[2 * h + 1] += p * v1
                move_up_weights(P)
            move_up_outputs(O)

    @cuda.jit(device=True, forceinline=True)
    def piece_not_finite(v):
        return not_finite(v[0]) or not_finite(v[1]) or not_finite(v[2]) or not_finite(v[3])

    # Before P V of a tile that holds keys which only some rows see, with NaN or infinity in V: a row must not even
    # multiply it by its zero weight. By all consumers. What is not finite is added one by one, and then counts as 0, so
    # rows that see none of it get the bits that they would get without.
    @cuda.jit(device=True, forceinline=True)
    def take_not_finite(O, P, V_tile, row, first_key, p):
        first, end = cuda.local.array(2, int32), cuda.local.array(2, int32)
        keys_seen(first, end, row, first_key, p)
        add_not_finite(O, P, V_tile, int32(p.kv_len - first_key), first, end)
        sync_threads(ALL_CONSUMERS, CONSUMER_THREADS)
        for e in range(int32(thread_index() - WARPGROUP), unknown(PIECES), int32(CONSUMER_THREADS)):
            at = V_tile + uint32(e) * uint32(16)
            v = load_piece(at)
            if piece_not_finite(v):
                store_piece(
                    at, (finite_or_zero(v[0]), finite_or_zero(v[1]), finite_or_zero(v[2]), finite_or_zero(v[3]))
                )
        publish_to_async()
        sync_threads(ALL_CONSUMERS, CONSUMER_THREADS)

    return take_not_finite
