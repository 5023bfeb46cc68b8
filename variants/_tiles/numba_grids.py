"""Which rows and which head a block owns, mostly where heads start side by side, see grids.py."""

from __future__ import annotations

from typing import Any

from numba import cuda, int32, uint32

from variants._features.numba_limits import RowBlock
from variants._features.numba_sequences import SequenceFunctions
from variants._tiles.numba_tiles import MASK, batch_index


# The grid is (blocks of a head, heads, batch); `group` heads share K and V.
@cuda.jit(device=True, forceinline=True)
def kv_head_index(group):
    return uint32(cuda.blockIdx.y) // uint32(group)


# --- The grid is (heads, blocks of a head, batch) ---------------------------------------------------------------------


# From the last block of rows on.
@cuda.jit(device=True, forceinline=True)
def row_block_across():
    return int32(cuda.gridDim.y - 1 - cuda.blockIdx.y) & MASK


# From the first block of keys on.
@cuda.jit(device=True, forceinline=True)
def key_block_across():
    return cuda.blockIdx.y & MASK


@cuda.jit(device=True, forceinline=True)
def head_across():
    return cuda.blockIdx.x & MASK


# The rows that the block owns; there are `most` in all blocks but the last.
@cuda.jit(device=True, forceinline=True)
def rows_across(most, q_len):
    i_block = row_block_across()
    first_row = i_block * most
    return RowBlock(
        batch_index(), head_across(), i_block, cuda.gridDim.y & MASK, first_row, min(most, q_len - first_row)
    )


def rows_of_sequence_across(most: int, sequences: SequenceFunctions) -> Any:
    """Device function: the block's sequence, as of `numba_sequences`, and its rows, of which a block owns `most`."""
    sequence_at = sequences.at

    @cuda.jit(device=True, forceinline=True)
    def rows_of(sequences, q_len, kv_len):
        first_row = row_block_across() * most
        own = sequence_at(sequences, batch_index(), first_row, q_len, kv_len)
        return own, rows_across(most, own.q_len)

    return rows_of


# `group` heads share K and V.
@cuda.jit(device=True, forceinline=True)
def kv_head_across(group):
    return uint32(cuda.blockIdx.x) // uint32(group)


# --- The grid is (heads side by side, blocks of a head, groups of so many heads) --------------------------------------


# Counted through the batch.
@cuda.jit(device=True, forceinline=True)
def head_index_across():
    return uint32(cuda.blockIdx.z) * uint32(cuda.gridDim.x) + uint32(cuda.blockIdx.x)


# Of `heads` in each batch entry.
@cuda.jit(device=True, forceinline=True)
def head_of_entry(heads):
    return uint32(head_index_across() % uint32(heads))


@cuda.jit(device=True, forceinline=True)
def entry_of_head(heads):
    return uint32(head_index_across() // uint32(heads))
