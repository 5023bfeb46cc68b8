"""Four floats at once in Numba, which has no float4."""

from __future__ import annotations

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._mma import numba_mma as ptx

load_global, store_shared, load_shared = ptx.load_global(16), ptx.store_shared(16), ptx.load_shared(16)
ZEROS = (uint32(0), uint32(0), uint32(0), uint32(0))


# Copy array[first] to array[first + 3] to a tile's elements `to` to `to` + 3, or zeros if they do not exist.
@cuda.jit(device=True, forceinline=True)
def copy_four(tile, to, array, first, exists):
    four = load_global(ptx.global_address(array) + uint64(first) * uint64(4)) if exists else ZEROS
    store_shared(uint32(ptx.shared_address(tile) + uint32(to) * uint32(4)), four)


# Elements `first` to `first` + 3 of a tile.
@cuda.jit(device=True, forceinline=True)
def four_of(tile, first):
    x = load_shared(uint32(ptx.shared_address(tile) + uint32(first) * uint32(4)))
    return as_float(x[0]), as_float(x[1]), as_float(x[2]), as_float(x[3])


@cuda.jit(device=True, forceinline=True)
def as_float(bits):
    return float32(libdevice.int_as_float(int32(bits)))
