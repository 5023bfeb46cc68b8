"""Masks that are bands, in the layout of a product on tensor cores. Of those that are none: numba_spans.py."""

from __future__ import annotations

from types import SimpleNamespace

from numba import cuda, int32, uint32

from variants._mma.numba_mma import end_seen, first_seen, lane_index


# What a warp's rows see of a tile of `keys` keys: the first row lies on key `place`, each other one key further. Rows g
# and g + 8 of tile i of 16 rows are h = 0 and 1. The first key may lie before the tile, or behind it.
@cuda.jit(device=True, forceinline=True)
def key_of_row(place, i, h):
    return int32(place + (16 * i + 8 * h) + int32(lane_index() >> uint32(2)))


@cuda.jit(device=True, forceinline=True)
def first_of_row(place, before, i, h):
    return int32(key_of_row(place, i, h) - before)


@cuda.jit(device=True, forceinline=True)
def end_of_row(place, after, keys, i, h):
    return int32(min(int32(key_of_row(place, i, h) + after + 1), keys))


# A band is two numbers: there is nothing to keep.
@cuda.jit(device=True, forceinline=True)
def keep_limits(before, after, first_row, rows, q_len, kv_len):
    return before, after


@cuda.jit(device=True, forceinline=True)
def place_of(warp_row, q_len, kv_len, first_key):
    return int32(warp_row - q_len + int32(kv_len - first_key))


# The last rows, which see most keys where causal, start first.
@cuda.jit(device=True, forceinline=True)
def row_block(order):
    return int32(cuda.gridDim.y - 1 - cuda.blockIdx.y)


BAND = SimpleNamespace(
    first_seen=first_seen,
    end_seen=end_seen,
    keep_limits=keep_limits,
    place_of=place_of,
    first_of_row=first_of_row,
    end_of_row=end_of_row,
    row_block=row_block,
)
