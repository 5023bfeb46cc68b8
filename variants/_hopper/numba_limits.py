"""Limits for consumers, where a lane has two rows. The CUDA twin is limits.cuh: same names.

A kernel's parameter `limits` is (before, after): row i, on key i + kv_len - q_len, sees the keys from `before` before
that one to `after` after it. `p` holds q_len, kv_len and limits.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from numba import cuda, int32


@dataclass(frozen=True, eq=False)
class WarpgroupLimits:
    """Device functions, and at which ends kernels compare keys."""

    HIDES_FIRST: bool
    """Whether some rows do not see the first keys, as under a window."""
    HIDES_LAST: bool
    """Whether some rows do not see the last keys, as under a causal mask."""
    first: Any
    """Returns the first key that a row sees."""
    end: Any
    """Returns the end of the keys that a row sees."""
    first_of_lane: Any
    """Returns the first key, which may be negative."""
    end_of_lane: Any
    """Returns the end, which may be negative."""


@functools.cache
def warpgroup_band(hides_first: bool, hides_last: bool) -> WarpgroupLimits:
    """Return no mask, a causal mask or a sliding window. The same arguments give the same object."""
    HIDES_FIRST, HIDES_LAST = hides_first, hides_last

    @cuda.jit(device=True, forceinline=True)
    def unclipped_first(p, row):
        return int32(row + p.kv_len - p.q_len - p.limits[0])

    @cuda.jit(device=True, forceinline=True)
    def unclipped_end(p, row):
        return int32(row + p.kv_len - p.q_len + p.limits[1] + 1)

    @cuda.jit(device=True, forceinline=True)
    def first(p, row):
        return int32(max(unclipped_first(p, row), int32(0)))

    @cuda.jit(device=True, forceinline=True)
    def end(p, row):
        return int32(min(max(unclipped_end(p, row), int32(0)), p.kv_len))

    @cuda.jit(device=True, forceinline=True)
    def first_of_lane(p, row):
        return unclipped_first(p, row) if HIDES_FIRST else int32(0)

    @cuda.jit(device=True, forceinline=True)
    def end_of_lane(p, row):
        return int32(min(unclipped_end(p, row), p.kv_len)) if HIDES_LAST else p.kv_len

    return WarpgroupLimits(HIDES_FIRST, HIDES_LAST, first, end, first_of_lane, end_of_lane)
