"""Sequences of any lengths whose keys are divided among blocks: how a block finds its own, and which keys rows see.

The CUDA twin is sequences.cuh.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._mma.numba_mma import ALL_LANES, end_seen, first_seen
from variants._mma.numba_runs_of_rows import RUNS_OF_ROWS, RunsOfRows, SeenFunctions


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


def seen_by_queries(has_window: bool) -> tuple[SeenFunctions, Any]:
    """Functions of what `seen` is to numba_split_attention.py, and the device function that makes it.

    Its arguments: the queries of rows g and g + 8 of the lane, the first and the last query of the block, q_len and
    kv_len, and `limits`.
    """
    if not has_window:

        @cuda.jit(device=True, forceinline=True)
        def ends(queries, first_query, last_query, q_len, kv_len, limits):
            return EndsOfRows(
                end_seen(queries[0], q_len, kv_len, limits[1]),
                end_seen(queries[1], q_len, kv_len, limits[1]),
                end_seen(first_query, q_len, kv_len, limits[1]),
            )

        return ENDS_OF_ROWS, ends

    @cuda.jit(device=True, forceinline=True)
    def runs(queries, first_query, last_query, q_len, kv_len, limits):
        return RunsOfRows(
            first_seen(queries[0], q_len, kv_len, limits[0]),
            first_seen(queries[1], q_len, kv_len, limits[0]),
            end_seen(queries[0], q_len, kv_len, limits[1]),
            end_seen(queries[1], q_len, kv_len, limits[1]),
            first_seen(last_query, q_len, kv_len, limits[0]),
            end_seen(first_query, q_len, kv_len, limits[1]),
        )

    return RUNS_OF_ROWS, runs
