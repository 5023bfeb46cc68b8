"""Where L and D of rows lie. The CUDA twin is stats.cuh."""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32, uint32

from variants._mma_backward.stats import STATS_ROWS


@functools.cache
def numba_stats(of_tiles: bool) -> Any:
    """Device function: L and D have room for so many rows of each head; see `stats`."""

    @cuda.jit(device=True, forceinline=True)
    def rows(q_len):
        if of_tiles:
            return int32(uint32(q_len + STATS_ROWS - 1) // uint32(STATS_ROWS) * uint32(STATS_ROWS))
        return int32(q_len)

    return rows
