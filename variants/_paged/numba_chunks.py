"""Chunks: how many query rows each sequence has, and where they lie. The CUDA twin is chunks.cuh.

A kernel's parameter `chunks` is a number if all sequences have equally many rows, and else a tuple: the array
`cu_seqlens_q`, and the number of all rows.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._features.numba_stored import conversions
from variants._tiles.numba_tile_copies import copies, places
from variants._tiles.numba_tiles import MASK, THREADS, ZERO, thread_index


class EqualChunk(NamedTuple):
    """The rows of a sequence, equally many in each."""

    q_len: Any


class EqualRows(NamedTuple):
    """A block's rows of a group, which lie one after the other."""

    first_stat: Any


class RaggedChunk(NamedTuple):
    """The rows of one of several sequences that lie one after the other."""

    q_len: Any
    q_first: Any
    tokens: Any


class RaggedRows(NamedTuple):
    """A block's rows of a group, from `first_row` on: row r is query r % q_len of head first_head + r // q_len."""

    q_len: Any
    q_first: Any
    tokens: Any
    first_head: Any
    first_row: Any


class ChunkFunctions(NamedTuple):
    """Device functions; see `numba_chunks`."""

    of: Any
    has: Any
    rows: Any
    load: Any
    store: Any
    stat: Any


def _equal(D: int, dtype: str) -> ChunkFunctions:
    load_tile, store_tile = copies(D, dtype)

    @cuda.jit(device=True, forceinline=True)
    def of(q_len, sequence):
        return EqualChunk(q_len)

    @cuda.jit(device=True, forceinline=True)
    def has(chunk, rows):
        return True

    @cuda.jit(device=True, forceinline=True)
    def rows_of(chunk, sequence, kv_head, kv_heads, group, first_row):
        return EqualRows((sequence * kv_heads + kv_head) * group * chunk.q_len + first_row)

    # Rows of all heads are counted through: behind those of the first head lie the others'.
    @cuda.jit(device=True, forceinline=True)
    def load(tile, extent, Q, own, rows):
        load_tile(tile, extent, Q[0, 0], own.first_stat, rows)

    @cuda.jit(device=True, forceinline=True)
    def store(O, own, tile, rows):
        store_tile(O[0, 0], own.first_stat, tile, rows)

    @cuda.jit(device=True, forceinline=True)
    def stat(own, t):
        return own.first_stat + t

    return ChunkFunctions(of, has, rows_of, load, store, stat)


def _ragged(D: int, dtype: str) -> ChunkFunctions:
    _, widen, narrow = conversions(dtype)
    place, _ = places(D)

    @cuda.jit(device=True, forceinline=True)
    def of(chunks, sequence):
        q_first = chunks[0][sequence]
        return RaggedChunk(int32(chunks[0][sequence + 1] - q_first), q_first, chunks[1])

    @cuda.jit(device=True, forceinline=True)
    def has(chunk, rows):
        return rows > 0

    @cuda.jit(device=True, forceinline=True)
    def rows_of(chunk, sequence, kv_head, kv_heads, group, first_row):
        return RaggedRows(chunk.q_len, chunk.q_first, chunk.tokens, kv_head * group, first_row)

    # Of row `row` of the block.
    @cuda.jit(device=True, forceinline=True)
    def head_and_token(own, row):
        r, q_len = uint32(own.first_row + row), uint32(own.q_len)
        return (own.first_head + r // q_len) & MASK, (own.q_first + r % q_len) & MASK

    @cuda.jit(device=True, forceinline=True)
    def load(tile, extent, Q, own, rows):
        for start in range(0, extent * Q.shape[3], THREADS):
            e = uint32((start & MASK) + thread_index())
            if e < extent * D:
                x = ZERO
                if e < rows * D:
                    head, token = head_and_token(own, e // D)
                    x = widen(Q[0, head, token, e % D])
                tile.flat[place(e)] = x

    @cuda.jit(device=True, forceinline=True)
    def store(O, own, tile, rows):
        for start in range(0, rows * D, THREADS):
            e = uint32((start & MASK) + thread_index())
            if e < rows * D:
                head, token = head_and_token(own, e // D)
                O[0, head, token, e % D] = narrow(tile.flat[place(e)])

    @cuda.jit(device=True, forceinline=True)
    def stat(own, t):
        head, token = head_and_token(own, t)
        return head * own.tokens + token

    return ChunkFunctions(of, has, rows_of, load, store, stat)


@functools.cache
def numba_chunks(ragged: bool, D: int, dtype: str) -> ChunkFunctions:
    """Device functions for `RaggedChunks` or `EqualChunks`, with rows of D elements, stored as `dtype`.

    `of(chunks, sequence)` returns what a sequence has, `chunk`, with `chunk.q_len`. `has(chunk, rows)`: whether a block
    that would have so many rows has any. `rows(chunk, sequence, kv_head, kv_heads, group, first_row)`: a block's rows
    of a group, `own`. `load(tile, extent, Q, own, rows)` and `store(O, own, tile, rows)` move their tile. `stat(own,
    t)`: where the block's row t lies in lse, counted through.
    """
    return _ragged(D, dtype) if ragged else _equal(D, dtype)
