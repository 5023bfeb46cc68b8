"""Tiles that are brought on chip ahead of their use, while others are multiplied. The CUDA twin is copies.cuh."""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32, uint32, uint64
from numba.cuda import types
from numba.cuda.extending import intrinsic

from variants._mma.numba_assembly import assembly
from variants._mma.numba_mma import copy_async, global_address, shared_address
from variants._tiles.numba_tile_copies import copies, places
from variants._tiles.numba_tiles import THREADS, step_over, thread_index

FLOAT_BYTES = 4


# Until all that this thread has copied is there. Others' copies need a barrier besides.
@intrinsic
def wait_for_copies(typing_context):
    return assembly("cp.async.wait_all;", types.void(), ordered=True)


@functools.cache
def copy_tile_of(D: int, extent: int, dtype: str) -> Any:
    """Device function `copy_tile` for a tile of `extent` rows of D elements, stored as `dtype`."""
    place, _ = places(D)
    load_tile, _ = copies(D, dtype)
    STEP = step_over(D)
    AT_ONCE = THREADS * STEP
    BYTES = STEP * FLOAT_BYTES
    COPIES = -(-extent * D // AT_ONCE)
    copy = copy_async(BYTES)

    # `rows` rows of global memory -> a tile; zeros below. The rows of a head lie one after the other: the block copies
    # them as one run, STEP elements per thread and copy.
    if dtype == "float32":

        @cuda.jit(device=True, forceinline=True)
        def copy_tile(tile, source, first_row, rows):
            own, target = uint32(thread_index() * STEP), shared_address(tile)
            own_source = uint64(global_address(source) + uint64(uint64(first_row * D + own) * FLOAT_BYTES))
            for c in range(COPIES):
                e = uint32(own + c * AT_ONCE)
                # Whole rows further: without a division.
                to = uint32(place(own) + place(c * AT_ONCE)) if AT_ONCE % D == 0 else uint32(place(e))
                if extent * D % AT_ONCE == 0 or e < extent * D:
                    copy(
                        uint32(target + to * FLOAT_BYTES),
                        uint64(own_source + c * AT_ONCE * FLOAT_BYTES),
                        int32(e) < rows * D,
                    )

    # What is widened passes through registers, and is there at once.
    else:

        @cuda.jit(device=True, forceinline=True)
        def copy_tile(tile, source, first_row, rows):
            load_tile(tile, extent, source, first_row, rows)

    return copy_tile
