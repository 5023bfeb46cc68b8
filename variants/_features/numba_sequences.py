"""Sequences: where a block's sequence begins, and how many rows and keys it has. The CUDA twin is sequences.cuh.

A kernel's parameter `sequences` is a tuple: empty if all sequences are equally long, and else two arrays,
`cu_seqlens_q` and `cu_seqlens_k`. Kernels in which a block owns keys get these in the other order, and exchange the
roles of rows and keys, of q_len and kv_len.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from numba import cuda, int32

MASK = 0x7FFFFFFF


class OneLengthOwn(NamedTuple):
    """A sequence of a batch in which all are equally long."""

    batch: Any
    q_len: Any
    kv_len: Any


class VarlenOwn(NamedTuple):
    """One of several sequences that lie one after the other in one batch entry."""

    batch: Any
    q_len: Any
    kv_len: Any
    q_first: Any
    k_first: Any
    is_there: Any


class SequenceFunctions(NamedTuple):
    """Device functions; see `numba_sequences`."""

    at: Any
    has_rows: Any
    row: Any
    key: Any
    number: Any
    entry: Any


def _one_length() -> SequenceFunctions:
    @cuda.jit(device=True, forceinline=True)
    def at(sequences, sequence, first_row, q_len, kv_len):
        return OneLengthOwn(sequence, q_len, kv_len)

    @cuda.jit(device=True, forceinline=True)
    def has_rows(own):
        return True

    @cuda.jit(device=True, forceinline=True)
    def row(own, of_sequence):
        return of_sequence

    @cuda.jit(device=True, forceinline=True)
    def number(own, head_index, head):
        return head_index

    @cuda.jit(device=True, forceinline=True)
    def entry(own, sequence):
        return sequence

    return SequenceFunctions(at, has_rows, row, row, number, entry)


def _varlen() -> SequenceFunctions:
    # A block of rows behind the end of its sequence does not read where keys begin.
    @cuda.jit(device=True, forceinline=True)
    def at(sequences, sequence, first_row, q_len, kv_len):
        cu_seqlens_q, cu_seqlens_k = sequences[0], sequences[1]
        q_first = cu_seqlens_q[sequence]
        rows = int32(cu_seqlens_q[sequence + 1] - q_first)
        is_there = first_row < rows
        k_first, keys = int32(0), int32(0)
        if is_there:
            k_first = cu_seqlens_k[sequence]
            keys = int32(cu_seqlens_k[sequence + 1] - k_first)
        return VarlenOwn(0, rows, keys, q_first & MASK, k_first & MASK, is_there)

    @cuda.jit(device=True, forceinline=True)
    def has_rows(own):
        return own.is_there

    @cuda.jit(device=True, forceinline=True)
    def row(own, of_sequence):
        return own.q_first + of_sequence

    @cuda.jit(device=True, forceinline=True)
    def key(own, of_sequence):
        return own.k_first + of_sequence

    @cuda.jit(device=True, forceinline=True)
    def number(own, head_index, head):
        return head

    @cuda.jit(device=True, forceinline=True)
    def entry(own, sequence):
        return 0

    return SequenceFunctions(at, has_rows, row, key, number, entry)


@functools.cache
def numba_sequences(varlen: bool) -> SequenceFunctions:
    """Device functions for `Varlen` or `OneLength`.

    `at(sequences, sequence, first_row, q_len, kv_len)` returns what a block of rows has of its sequence, `own`, with
    `own.batch`, `own.q_len` and `own.kv_len`. `has_rows(own)`: whether the sequence reaches to `first_row`. `row(own,
    i)` and `key(own, j)`: where row i and key j of the sequence lie in Q and O, and in K and V. `number(own,
    head_index, head)`: the head among those of all batch entries. `entry(own, sequence)`: the sequence's batch entry.
    """
    return _varlen() if varlen else _one_length()
