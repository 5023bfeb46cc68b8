"""In which order blocks of rows start, see longest_first.py. The CUDA twin is longest_first.cu."""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32

from variants._tiles.longest_first import THREADS
from variants._tiles.numba_tiles import MASK


@functools.cache
def longest_first_kernel(block_rows: int, tile_keys: int) -> Any:
    """The kernel that ranks blocks of so many rows by the tiles of so many keys that they visit."""
    BR, BC = block_rows, tile_keys

    @cuda.jit(device=True, forceinline=True)
    def visits_of(block, first_keys, end_keys):
        first_row = block * BR
        last_row = min(first_row + BR, first_keys.shape[1]) - 1
        end = end_keys[cuda.blockIdx.z, last_row & MASK]
        return int32((end + BC - 1) // BC - first_keys[cuda.blockIdx.z, first_row & MASK] // BC)

    # The grid is (blocks of so many threads, 1, batch); each thread ranks one block of rows.
    @cuda.jit(launch_bounds=(THREADS,))
    def longest_first(order, q_len, kv_len, limits):
        first_keys, end_keys = limits
        visits = cuda.shared.array(THREADS, int32)
        thread = cuda.threadIdx.x
        count, own = int32((q_len + BR - 1) // BR), int32(cuda.blockIdx.x * THREADS + thread)
        own_visits = visits_of(own, first_keys, end_keys) if own < count else int32(0)

        rank = int32(0)
        for first in range(int32(0), count, int32(THREADS)):
            block = int32(first + thread)
            if block < count:
                visits[thread] = visits_of(block, first_keys, end_keys)
            cuda.syncthreads()
            for i in range(min(int32(THREADS), int32(count - first))):
                other = visits[i & MASK]
                if other > own_visits or (other == own_visits and first + i > own):
                    rank += int32(1)
            cuda.syncthreads()
        if own < count:
            order[cuda.blockIdx.z, rank & MASK] = own

    return longest_first
