"""Where rows of the block's sequence lie, among those of all heads and in dQ.

The CUDA twins are RowsIn in scoring.cuh and the types DQ in dq.cuh.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32, uint32, uint64

from variants._mma.numba_mma import load_shared, store_shared
from variants._tiles.numba_grids import head_index_across

load_word, store_word = load_shared(4), store_shared(4)


@functools.cache
def numba_rows_of_sequence(varlen: bool) -> SimpleNamespace:
    """Device functions, of several sequences (`varlen`) or of one length.

    `note(noted, own)` by one thread of a block, in shared memory: sums want the registers. `first_row(noted)`: where
    the sequence begins. `head_across()`: the block's head of K and V among those of all sequences. `fragments(head,
    q_len, first_row)`: how many rows of fragments of dQ lie before the sequence's.
    """
    return _of_several() if varlen else _of_one_length()


def _of_one_length() -> SimpleNamespace:
    @cuda.jit(device=True, forceinline=True)
    def note(noted, own):
        pass

    @cuda.jit(device=True, forceinline=True)
    def first_row(noted):
        return int32(0)

    @cuda.jit(device=True, forceinline=True)
    def fragments(head, q_len, first_row):
        return head * uint64(uint32(q_len + 15) >> uint32(4))

    return SimpleNamespace(note=note, first_row=first_row, head_across=head_index_across, fragments=fragments)


def _of_several() -> SimpleNamespace:
    @cuda.jit(device=True, forceinline=True)
    def note(noted, own):
        store_word(noted, uint32(own.k_first))  # mirrored

    @cuda.jit(device=True, forceinline=True)
    def first_row(noted):
        return int32(load_word(noted))

    @cuda.jit(device=True, forceinline=True)
    def head_across():
        return uint32(cuda.blockIdx.x)

    # Each sequence has fragments of its own: up to one more than its share of rows.
    @cuda.jit(device=True, forceinline=True)
    def fragments(head, q_len, first_row):
        of_head = uint32(uint32(uint32(q_len) >> uint32(4)) + uint32(cuda.gridDim.z))
        before = uint32(uint32(uint32(first_row) >> uint32(4)) + uint32(cuda.blockIdx.z))
        return head * uint64(of_head) + uint64(before)

    return SimpleNamespace(note=note, first_row=first_row, head_across=head_across, fragments=fragments)
