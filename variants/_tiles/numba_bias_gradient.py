"""What becomes of dS where scores have a bias. The CUDA twin is bias_gradient.cuh."""

from __future__ import annotations

from types import SimpleNamespace

from numba import cuda, int64

from variants._tiles.numba_tiles import (
    APART,
    THREADS,
    ZERO,
    lanes_sum,
    row_sum,
    thread_column,
    thread_index,
    thread_row,
)

NOTHING, ELSEWHERE, ADDED = "no bias", "elsewhere", "added"
"""Whether scores have a bias, and whether this kernel or another one computes its gradient."""


def numba_bias_gradient(kind: str, tiles: SimpleNamespace) -> SimpleNamespace:
    """Device functions `of_head`, `add` and `zero`, and IS_BIASED, for kernels in which a block owns keys."""
    if kind != ADDED:

        @cuda.jit(device=True, forceinline=True)
        def of_head(dbias, head):
            return ()

        @cuda.jit(device=True, forceinline=True)
        def add(dbias, dS, first_key, keys, first_row, rows):
            pass

        @cuda.jit(device=True, forceinline=True)
        def zero(dbias):
            pass

        return SimpleNamespace(of_head=of_head, add=add, zero=zero, IS_BIASED=kind == ELSEWHERE)

    TM, TN, row_of, key_of = tiles.TM, tiles.TN, tiles.row_of, tiles.key_of

    # A kernel's argument is (dbias, head_stride, row_stride, key_stride, elements). An axis that the bias does not vary
    # over has stride 0 and length 1.
    @cuda.jit(device=True, forceinline=True)
    def of_added_head(dbias, head):
        return dbias[0][head if dbias[0].shape[0] > 1 else 0], dbias[2], dbias[3]

    @cuda.jit(device=True, forceinline=True)
    def sum_of_row(dS, i):
        total = ZERO
        for j in range(TN):
            total += dS[i, j]
        return total

    # dbias += dS of a tile, after it has been summed over the tile's rows or keys if the bias does not vary over these.
    # dS is 0 where the tile has no such row or key.
    @cuda.jit(device=True, forceinline=True)
    def add_dS(dbias, dS, first_key, keys, first_row, rows):
        values, row_stride, key_stride = dbias
        if row_stride != 0 and key_stride != 0:
            for i in range(TM):
                for j in range(TN):
                    if row_of(i) < keys and key_of(j) < rows:
                        cuda.atomic.add(values, (first_row + key_of(j), first_key + row_of(i)), dS[i, j])
        elif row_stride != 0:
            for j in range(TN):
                total = ZERO
                for i in range(TM):
                    total += dS[i, j]
                total = lanes_sum(total, APART)
                if thread_row() % APART == 0 and key_of(j) < rows:
                    cuda.atomic.add(values, (first_row + key_of(j), 0), total)
        elif key_stride != 0:
            for i in range(TM):
                total = row_sum(sum_of_row(dS, i))
                if thread_column() == 0 and row_of(i) < keys:
                    cuda.atomic.add(values, (0, first_key + row_of(i)), total)
        else:
            total = ZERO
            for i in range(TM):
                total += sum_of_row(dS, i)
            total = lanes_sum(total, 32)
            if thread_index() % 32 == 0:
                cuda.atomic.add(values, (0, 0), total)

    # dbias = 0, by all blocks of a launch before.
    @cuda.jit(device=True, forceinline=True)
    def zero_added(dbias):
        values, elements = dbias[0], dbias[4]
        block = (int64(cuda.blockIdx.z) * cuda.gridDim.y + cuda.blockIdx.y) * cuda.gridDim.x + cuda.blockIdx.x
        blocks = int64(cuda.gridDim.x) * cuda.gridDim.y * cuda.gridDim.z
        rows, keys = values.shape[1], values.shape[2]
        for start in range(block * THREADS, elements, blocks * THREADS):
            e = start + thread_index()
            if e < elements:
                values[e // (rows * keys), e // keys % rows, e % keys] = ZERO

    return SimpleNamespace(of_head=of_added_head, add=add_dS, zero=zero_added, IS_BIASED=True)
