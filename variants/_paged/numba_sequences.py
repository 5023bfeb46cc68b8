"""Sequences of any lengths whose keys are divided among blocks: how a block finds its own, and which keys rows see.

The CUDA twin is sequences.cuh.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._mma.numba_mma import ALL_LANES
from variants._mma.numba_runs_of_rows import SeenFunctions


# Over the lanes of a warp: the sum of x, a uint32, of this lane and those before it.
@cuda.jit(device=True, forceinline=True)
def lanes_before(x, lane):
    for distance in (1, 2, 4, 8, 16):
        other = uint32(cuda.shfl_up_sync(ALL_LANES, int32(x), distance))
        if lane >= distance:
            x = uint32(x + other)
    return x


class EndsOfRows(NamedTuple):
    """Rows g and g + 8 of the lane see the keys before `to_0` and `to_1`."""

    to_0: Any
    to_1: Any
    to_for_all: Any
    """All rows of the block see the keys before this one."""


@cuda.jit(device=True, forceinline=True)
def ends_at(seen, key):
    return EndsOfRows(int32(seen.to_0 - key), int32(seen.to_1 - key), seen.to_for_all)


@cuda.jit(device=True, forceinline=True)
def end_sees(seen, i, k):
    return k < (seen.to_0 if i == 0 else seen.to_1)


@cuda.jit(device=True, forceinline=True)
def ends_all_see(seen, first, end):
    return end <= seen.to_for_all


ENDS_OF_ROWS = SeenFunctions(ends_at, end_sees, ends_all_see)
