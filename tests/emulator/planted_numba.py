"""Numba kernels with one mistake each, the twins of the CUDA ones in test_sanitizer.py. Comments mark the lines."""

from __future__ import annotations

from numba import cuda, float32

# mypy and ruff look elsewhere: these bodies are compiled for a GPU.


@cuda.jit
def no_barrier_after_load(x, y):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # first
    y[t] = s[127 - t]  # second


@cuda.jit
def no_barrier_before_the_next_load(x, y):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for i in range(2):
        s[t] = x[t + 64 * i]  # second
        cuda.syncthreads()
        total += s[63 - t]  # first
    y[t] = total


@cuda.jit
def two_lanes_write_one_word(x, y):
    s = cuda.shared.array(4, float32)
    t = cuda.threadIdx.x
    s[t & 3] = x[t]  # first second
    cuda.syncthreads()
    y[t] = s[t & 3]


@cuda.jit
def lanes_without_syncwarp(x, y):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # first
    y[t] = s[t ^ 1]  # second


@cuda.jit
def blocks_overlap(x, y):
    y[cuda.threadIdx.x + 16 * cuda.blockIdx.x] = x[cuda.threadIdx.x]  # first second


@cuda.jit
def block_reads_what_another_writes(x, y):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        y[t] = x[t]  # first
    else:
        y[t + 32] = y[t]  # second


@cuda.jit
def an_atomic_and_a_plain_store(x, y):
    s = cuda.shared.array(1, float32)
    t = cuda.threadIdx.x
    if t == 0:
        s[0] = x[0]  # first
    cuda.atomic.add(s, 0, x[t])  # second
    cuda.syncthreads()
    y[t] = s[0]


@cuda.jit
def half_of_a_warp_synchronised(x, y):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]  # first
    if t < 16:
        cuda.syncwarp(0xFFFF)
        y[t] = s[t ^ 16]  # second


@cuda.jit
def a_stale_tail_in_shared_memory(x, y):
    s = cuda.shared.array(128, float32)
    t = cuda.threadIdx.x
    if t < 40:
        s[t] = x[t]
    cuda.syncthreads()
    y[t] = s[t]  # second


@cuda.jit
def scratch_that_nobody_wrote(x, y):
    t = cuda.threadIdx.x
    if t > 0:
        y[t] = x[t]
    cuda.syncthreads()
    if t < 32:
        y[t + 32] = y[t]  # second
