"""Window: whether rows see all keys up to their own, or only those of a sliding window. The CUDA twin is window.cuh."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32

from variants._features.numba_limits import numba_limits


@functools.cache
def numba_window(has_window: bool) -> SimpleNamespace:
    """The device function `first`: the first key that a query sees, counted from the key `start`."""
    first_of_run = numba_limits(False).first

    if has_window:

        @cuda.jit(device=True, forceinline=True)
        def first(run, query, start):
            return int32(first_of_run(run, query) - start)

    else:

        @cuda.jit(device=True, forceinline=True)
        def first(run, query, start):
            return int32(0)

    return SimpleNamespace(first=first)
