"""A thread's pieces of a row, between shared memory, registers and memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace

from numba import cuda, float32, int32, uint32, uint64
from numba.cuda import libdevice

from variants._mma.numba_mma import load_shared, numba_mma, store_global
from variants._rows.numba_rows import MINUS_INFINITY
from variants.softmax.pipelined import PIECE_BYTES

WORDS = PIECE_BYTES // 4


@functools.cache
def words_of(dtype: str) -> tuple[Callable, Callable]:
    """Device functions between the words of 32 bits of a piece and its elements, which are in a local array."""
    if dtype == "float32":

        @cuda.jit(device=True, forceinline=True)
        def widen(x, first, word):
            x[first] = libdevice.int_as_float(int32(word))

        @cuda.jit(device=True, forceinline=True)
        def narrow(y, first, factor):
            return uint32(libdevice.float_as_int(float32(y[first] * factor)))

    else:
        halves: SimpleNamespace = numba_mma(dtype)
        unpacked, packed = halves.unpacked, halves.packed

        @cuda.jit(device=True, forceinline=True)
        def widen(x, first, word):
            x[first], x[first + 1] = unpacked(word)

        @cuda.jit(device=True, forceinline=True)
        def narrow(y, first, factor):
            return packed(float32(y[first] * factor), float32(y[first + 1] * factor))

    return widen, narrow


@functools.cache
def row_of_pieces(PIECES: int, ROW_THREADS: int, dtype: str) -> tuple[Callable, Callable]:
    """Device functions that load a thread's elements into a local array, and store them times a factor.

    The thread has every ROW_THREADS-th of a row's pieces, PIECES at most: those of the `left` ones from its first on.
    """
    PER_WORD = 1 if dtype == "float32" else 2
    VECTOR, STRIDE = WORDS * PER_WORD, ROW_THREADS * PIECE_BYTES
    load_piece, store_piece = load_shared(PIECE_BYTES), store_global(PIECE_BYTES)
    widen, narrow = words_of(dtype)

    # x_j, and -inf beyond the row.
    @cuda.jit(device=True, forceinline=True)
    def load_pieces(x, first, left):
        for k in range(PIECES):
            if k * ROW_THREADS < left:
                words = load_piece(uint32(first + uint32(k * STRIDE)))
                for w in range(WORDS):
                    widen(x, k * VECTOR + w * PER_WORD, words[w])
            else:
                for e in range(k * VECTOR, (k + 1) * VECTOR):
                    x[e] = MINUS_INFINITY

    @cuda.jit(device=True, forceinline=True)
    def store_pieces(y, factor, first, left):
        for k in range(PIECES):
            if k * ROW_THREADS < left:
                words = (
                    narrow(y, k * VECTOR, factor),
                    narrow(y, k * VECTOR + PER_WORD, factor),
                    narrow(y, k * VECTOR + 2 * PER_WORD, factor),
                    narrow(y, k * VECTOR + 3 * PER_WORD, factor),
                )
                store_piece(uint64(first + uint64(k * STRIDE)), words)

    return load_pieces, store_pieces
