"""Sequences of _features/numba_sequences.py for blocks that take tile after tile. The CUDA twin is sequences.cuh.

A kernel's `sequences` is a tuple: empty if all sequences are equally long, and else `cu_seqlens_q`, `cu_seqlens_k`, O,
the elements from a row and from a head of O to the next, and the tiles of rows of all packs.
"""

from __future__ import annotations

import functools
from typing import Any

from numba import cuda, int32, uint32, uint64

from variants._features.numba_sequences import MASK, SequenceFunctions, VarlenOwn, numba_sequences
from variants._hopper import ELEMENT_BYTES, PIECE_BYTES, PIECE_ELEMENTS, WARPGROUP_ROWS, padded
from variants._hopper.numba_hopper import WARPGROUP, numba_hopper
from variants._mma.numba_mma import global_address, load_shared, store_global, thread_index, unknown

load_piece, store_piece = load_shared(PIECE_BYTES), store_global(PIECE_BYTES)


# Of a tile of rows that the sequence reaches to: all at once.
@cuda.jit(device=True, forceinline=True)
def own_of_tile(sequences, sequence, first_row, q_len, kv_len):
    cu_seqlens_q, cu_seqlens_k = sequences[0], sequences[1]
    q_first, q_end = cu_seqlens_q[sequence], cu_seqlens_q[sequence + 1]
    k_first, k_end = cu_seqlens_k[sequence], cu_seqlens_k[sequence + 1]
    return VarlenOwn(0, int32(q_end - q_first), int32(k_end - k_first), q_first & MASK, k_first & MASK, True)


# Rows of a sequence.
@cuda.jit(device=True, forceinline=True)
def rows_of(sequences, sequence):
    return int32(sequences[0][sequence + 1] - sequences[0][sequence])


def warpgroup_sequences(varlen: bool) -> SequenceFunctions:
    """Device functions as of `numba_sequences`; with `varlen`, `at` is for tiles that their sequence reaches to."""
    found = numba_sequences(varlen)
    return found._replace(at=own_of_tile) if varlen else found


@functools.cache
def store_rows_of_sequence(head_dim: int, rows: int) -> Any:
    """The device function that stores a warpgroup's rows of O from a tile of so many `rows`, as far as there are any.

    Behind the last row of a sequence O has the next one's, which a box of a tensor map would overwrite.
    """
    hopper, PIECES = numba_hopper(padded(head_dim)), head_dim // PIECE_ELEMENTS
    PIECES_PER_BOX, BOX_BYTES, piece_of_row = (
        hopper.COLUMNS // PIECE_ELEMENTS,
        rows * hopper.ROW_BYTES,
        hopper.piece_of_row,
    )

    # 16 bytes per lane. The warpgroup's 64 rows are 1 << shift of each head from `head` on; the first one is row
    # `first_row` of the sequence.
    @cuda.jit(device=True, forceinline=True)
    def store(sequences, O_rows, own, head, first_row, shift):
        O, of_row, of_head = sequences[2], uint64(sequences[3]), uint64(sequences[4])
        start = int32(uint32(thread_index()) % uint32(WARPGROUP))
        for e in range(start, unknown(WARPGROUP_ROWS * PIECES), int32(WARPGROUP)):
            mine, piece = uint32(e) // uint32(PIECES), uint32(e) % uint32(PIECES)
            row = int32(first_row + int32(mine & uint32((int32(1) << shift) - 1)))
            if row < own.q_len:
                box = uint32(O_rows + piece // uint32(PIECES_PER_BOX) * uint32(BOX_BYTES))
                o = load_piece(uint32(box + piece_of_row(mine, piece % uint32(PIECES_PER_BOX))))
                at = uint64(head + (mine >> uint32(shift))) * of_head + uint64(own.q_first + row) * of_row
                element = at + uint64(piece * uint32(PIECE_ELEMENTS))
                store_piece(global_address(O) + element * uint64(ELEMENT_BYTES), o)

    return store
