"""Slots between a role that fills them and one that reads them. The CUDA twin is slots.cuh: same names."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, uint32

from variants._hopper.numba_hopper import arrive, arrive_and_expect, init_barrier, wait

BARRIER_BYTES = 8


@functools.cache
def numba_slots(count: int, first: int, fillers: int = 1) -> SimpleNamespace:
    """Slots in shared memory that one role fills and another reads, with two mbarriers each.

    Item n, counted from 0, is put into slot n % COUNT, which is full once `fillers` have filled it. `first`: bytes from
    the block's barriers to those of the slots.
    """
    COUNT, ARE_FULL, ARE_EMPTY, END = count, first, first + BARRIER_BYTES * count, first + 2 * BARRIER_BYTES * count

    @cuda.jit(device=True, forceinline=True)
    def slot(n):
        return uint32(n) % uint32(COUNT)

    @cuda.jit(device=True, forceinline=True)
    def phase(n):
        return uint32(uint32(n) // uint32(COUNT)) & uint32(1)

    @cuda.jit(device=True, forceinline=True)
    def full(barriers, n):
        return uint32(barriers + uint32(ARE_FULL) + slot(n) * uint32(BARRIER_BYTES))

    @cuda.jit(device=True, forceinline=True)
    def empty(barriers, n):
        return uint32(barriers + uint32(ARE_EMPTY) + slot(n) * uint32(BARRIER_BYTES))

    # A slot is empty once so many readers have released it.
    @cuda.jit(device=True, forceinline=True)
    def init(barriers, readers):
        for n in range(COUNT):
            init_barrier(full(barriers, n), fillers)
            init_barrier(empty(barriers, n), readers)

    # The role that fills: copies of so many bytes fill the slot.
    @cuda.jit(device=True, forceinline=True)
    def wait_until_empty(barriers, n):
        wait(empty(barriers, n), phase(n) ^ uint32(1))

    @cuda.jit(device=True, forceinline=True)
    def expect(barriers, n, bytes):
        arrive_and_expect(full(barriers, n), bytes)

    @cuda.jit(device=True, forceinline=True)
    def fill(barriers, n):
        arrive(full(barriers, n))

    # The role that reads.
    @cuda.jit(device=True, forceinline=True)
    def wait_until_full(barriers, n):
        wait(full(barriers, n), phase(n))

    @cuda.jit(device=True, forceinline=True)
    def release(barriers, n):
        arrive(empty(barriers, n))

    return SimpleNamespace(
        END=END,
        full=full,
        init=init,
        wait_until_empty=wait_until_empty,
        expect=expect,
        fill=fill,
        wait_until_full=wait_until_full,
        release=release,
    )
