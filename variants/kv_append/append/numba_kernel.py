"""Appends keys and values to a paged cache, as append_paged_kv_cache of FlashInfer and reshape_and_cache of vLLM do.

The CUDA twin is kernel.cu.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32, uint64

from variants._mma.numba_mma import global_address, load_global, store_global
from variants.kv_append.append import THREADS


@functools.cache
def append_kernel(vector_bytes: int, row_vectors: int, page_size: int) -> Any:
    """The kernel for rows of `row_vectors` vectors of `vector_bytes`, and pages of `page_size` rows."""
    VECTOR, ROW, PAGE = vector_bytes, row_vectors, page_size
    load, store = load_global(VECTOR), store_global(VECTOR)

    @cuda.jit(launch_bounds=THREADS)
    def append(K_new, V_new, starts, table, lengths, K, V, tokens, sequences, farthest, table_len, kv_heads):
        # Line 1: a warp has one new token.
        token = int32(cuda.blockIdx.x * (THREADS // 32) + cuda.threadIdx.x // 32)
        lane = int32(cuda.threadIdx.x % 32)
        if token >= tokens:
            return

        # Line 2: b = max {b : starts[b] <= token}, by halves: `farthest` is the largest power of two below `sequences`.
        # starts[sequences] is beyond all tokens.
        sequence, step = int32(0), farthest
        while step > 0:
            if starts[min(int32(sequence + step), sequences)] <= token:
                sequence = int32(sequence + step)
            step = int32(step // 2)

        # Line 3: j = lengths[b] - (starts[b + 1] - token). Lengths count the new tokens.
        key = int32(lengths[sequence] - (starts[sequence + 1] - token))

        # Line 4: the slot of key j is row j % PAGE of page table[b, j / PAGE].
        page, row = table[sequence, key // PAGE], key % PAGE

        # Line 5: K[page, h, row] = K_new[token, h] and V[page, h, row] = V_new[token, h] for all heads h. All lanes
        # take as many steps, so that they stay together: those of a request have consecutive vectors.
        vectors = int32(kv_heads * ROW)
        first = uint64(token) * uint64(vectors)
        for start in range(0, vectors, 32):
            i = int32(start + lane)
            head = i // ROW
            slot = ((uint64(page) * uint64(kv_heads) + uint64(head)) * uint64(PAGE) + uint64(row)) * uint64(ROW)
            to, at = (slot + uint64(i % ROW)) * uint64(VECTOR), (first + uint64(i)) * uint64(VECTOR)
            if i < vectors:
                store(global_address(K) + to, load(global_address(K_new) + at))
                store(global_address(V) + to, load(global_address(V_new) + at))

    return append
