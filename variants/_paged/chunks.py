"""Chunks of query rows: what they are in kernels (chunks.cuh, numba_chunks.py), and the bytes of moving them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness import PagedProblem
from variants._features import CU_SEQLENS_Q, Feature, Files
from variants._tiles.sectors import LANES, SECTOR_BYTES

Q_LENGTHS_FEATURE = "q_lengths"
"""Feature in `takes` of a variant whose kernels take sequences with different numbers of rows."""


def chunks(problem: PagedProblem) -> Feature:
    """Return how many rows each sequence has, a type that the kernel's argument `chunks_argument` has."""
    chosen = "EqualChunks" if problem.q_lengths is None else "RaggedChunks"
    return Feature("Chunks", chosen, (), (("_paged", "chunks.cuh"),))


def chunks_argument(problem: PagedProblem) -> Any:
    """Return the kernel's argument `chunks`: the number of rows, or where those of each sequence begin, and of all."""
    if problem.q_lengths is None:
        return np.int32(problem.q_len)
    return (CU_SEQLENS_Q, np.int32(sum(problem.q_lengths)))


def ragged_tiles(problem: PagedProblem) -> Files:
    """Return the CUDA file of tiles whose rows are no run, which follows tiles.cuh."""
    return () if problem.q_lengths is None else (("_paged", "ragged_tiles.cuh"),)


def with_equal_rows(problem: PagedProblem) -> Iterator[PagedProblem]:
    """Yield a problem of the sequences that have equally many rows, for each number of them; itself if all have.

    Sequences without rows are left out. What is counted per sequence is the sum over these problems.
    """
    if problem.q_lengths is None:
        yield problem
        return
    for rows in sorted({*problem.q_lengths} - {0}):
        lengths = tuple(length for length, own in zip(problem.lengths, problem.q_lengths) if own == rows)
        yield problem.with_fields(
            q_lengths=None, q_len=rows, lengths=lengths, batch=None, prefix=0, pages=None, table_len=None, in_use=None
        )


def chunk_bytes(problem: PagedProblem, Br: int, elements_per_row: int, itemsize_bytes: int) -> int:
    """Return bytes of moving the rows of Q or O, or with one element per row lse, once, in tiles of `Br`.

    At the `sectors` level: each warp request is 32 elements of a tile, counted through. For `RaggedChunks`.
    """
    p, tokens = problem, sum(problem.rows)
    # Elements from a token, and from a head, to the next.
    strides = (1, tokens) if elements_per_row == 1 else (p.heads * elements_per_row, elements_per_row)
    total = 0
    for q_first, q_len in zip(p.row_starts, p.rows):
        for first_row in range(0, p.group * q_len, Br):
            rows = min(Br, p.group * q_len - first_row)
            head, query = divmod(first_row, q_len)
            # Of a tile within a head it does not matter where in it.
            counted, begin = (rows, 0) if query + rows <= q_len else (q_len, query)
            for kv_head in range(p.kv_heads):
                first = (q_first + query - begin) * strides[0] + (kv_head * p.group + head) * strides[1]
                phase = first * itemsize_bytes % SECTOR_BYTES
                total += _tile_bytes(phase, strides, counted, begin, rows, elements_per_row, itemsize_bytes)
    return total


@functools.lru_cache(maxsize=1 << 14)
def _tile_bytes(
    phase_bytes: int,
    strides: tuple[int, int],
    q_len: int,
    first_query: int,
    rows: int,
    elements_per_row: int,
    itemsize_bytes: int,
) -> int:
    """Bytes of a tile of rows, of which the first is a query of a head that begins `phase_bytes` behind a sector."""
    row, column = np.divmod(np.arange(rows * elements_per_row, dtype=np.int64), elements_per_row)
    head, query = np.divmod(first_query + row, q_len)
    at = phase_bytes + (query * strides[0] + head * strides[1] + column) * itemsize_bytes
    request = np.arange(len(at)) // LANES
    return SECTOR_BYTES * np.unique(np.stack((request, at // SECTOR_BYTES)), axis=1).shape[1]


def start_bytes(problem: PagedProblem, warps: int, blocks: int) -> int:
    """Return bytes of reading where the rows of a sequence begin and end, by each warp of so many blocks."""
    return 0 if problem.q_lengths is None else 2 * SECTOR_BYTES * warps * blocks
