"""Limits: which keys a row of queries sees, if these are a run of keys. The CUDA twin is limits.cuh: same names.

A kernel's parameter `limits` is a tuple, of two numbers (`Band`) or of two arrays (`Spans`). Kernels in which a block
owns keys get the mirrored limits, and exchange the roles of rows and keys, of q_len and kv_len.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32

MASK = 0x7FFFFFFF


class RowBlock(NamedTuple):
    """A block of consecutive rows of one head of one batch entry."""

    batch: Any
    head: Any
    number: Any
    """Which of the head's blocks."""
    blocks: Any
    """Number of the head's blocks."""
    first_row: Any
    rows: Any
    """Number of rows; fewer in the last block."""


class BlockLimits(NamedTuple):
    """What the rows of a block see together, and the run of each."""

    run: Any
    first_key: Any
    """Some row sees a key: only keys first_key to end_key - 1."""
    end_key: Any
    first_by_all: Any
    """All rows see keys first_by_all to end_by_all - 1."""
    end_by_all: Any


class BandRun(NamedTuple):
    """The run of each row under a `Band`."""

    before: Any
    after: Any
    q_len: Any
    kv_len: Any


class SpansRun(NamedTuple):
    """The run of each row under `Spans`: of `first_row` and the rows after it."""

    first_keys: Any
    end_keys: Any
    first_row: Any


@cuda.jit(device=True, forceinline=True)
def thread_of_block():
    return cuda.threadIdx.y * cuda.blockDim.x + cuda.threadIdx.x


def _band() -> tuple[Any, ...]:
    """No mask, a causal mask, a sliding window.

    Row i lies on key i + kv_len - q_len (aligned bottom right) and sees the keys from `before` before that one to
    `after` after it.
    """

    # Not clipped to the sequence: those of rows a constant distance apart take one register.
    @cuda.jit(device=True, forceinline=True)
    def unclipped_first(run, row):
        return row + run.kv_len - run.q_len - run.before

    @cuda.jit(device=True, forceinline=True)
    def unclipped_end(run, row):
        return row + run.kv_len - run.q_len + run.after + 1

    @cuda.jit(device=True, forceinline=True)
    def first(run, row):
        return max(unclipped_first(run, row), 0)

    @cuda.jit(device=True, forceinline=True)
    def end(run, row):
        return min(max(unclipped_end(run, row), 0), run.kv_len)

    @cuda.jit(device=True, forceinline=True)
    def of_sequence(limits, batch, q_len, kv_len):
        return BandRun(limits[0], limits[1], q_len, kv_len)

    @cuda.jit(device=True, forceinline=True)
    def run_of_block(limits, block, q_len, kv_len):
        return BandRun(limits[0], limits[1], q_len, kv_len)

    return unclipped_first, unclipped_end, first, end, of_sequence, run_of_block


def _spans(rows: int) -> tuple[Any, ...]:
    """Packed documents, a prefix, and what else is no band: two arrays of (batch, q_len) hold the run of each row.

    A block loads those of its rows into shared memory once.
    """
    ROOM = -(-rows // 16) * 16

    @cuda.jit(device=True, forceinline=True)
    def first(run, row):
        return run.first_keys[(row - run.first_row) & MASK]

    @cuda.jit(device=True, forceinline=True)
    def end(run, row):
        return run.end_keys[(row - run.first_row) & MASK]

    @cuda.jit(device=True, forceinline=True)
    def of_sequence(limits, batch, q_len, kv_len):
        return SpansRun(limits[0][batch], limits[1][batch], 0)

    # A tile may have room for more rows than the block has: these see nothing, after all keys.
    @cuda.jit(device=True, forceinline=True)
    def run_of_block(limits, block, q_len, kv_len):
        first_kept = cuda.shared.array(ROOM, int32)
        end_kept = cuda.shared.array(ROOM, int32)
        t = thread_of_block() & MASK
        if t < ROOM:
            first_kept[t] = limits[0][block.batch, block.first_row + t] if t < block.rows else kv_len
            end_kept[t] = limits[1][block.batch, block.first_row + t] if t < block.rows else kv_len
        cuda.syncthreads()
        return SpansRun(first_kept, end_kept, block.first_row)

    return first, end, first, end, of_sequence, run_of_block


@functools.cache
def numba_limits(spans: bool, rows: int = 0) -> SimpleNamespace:
    """Device functions for `Spans` or `Band`; `rows`: of a block, for `of_block`."""
    unclipped_first, unclipped_end, first, end, of_sequence, run_of_block = _spans(rows) if spans else _band()

    # Called by all threads of the block.
    @cuda.jit(device=True, forceinline=True)
    def of_block(limits, block, q_len, kv_len):
        run = run_of_block(limits, block, q_len, kv_len)
        last_row = block.first_row + block.rows - 1
        return BlockLimits(
            run, first(run, block.first_row), end(run, last_row), first(run, last_row), end(run, block.first_row)
        )

    return SimpleNamespace(
        unclipped_first=unclipped_first,
        unclipped_end=unclipped_end,
        first=first,
        end=end,
        of_sequence=of_sequence,
        of_block=of_block,
    )
