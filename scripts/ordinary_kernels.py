"""Nine ordinary Numba kernels, which `bench_emulator.py` times on the emulator and in Numba's simulator.

The simulator runs every thread as a thread of Python. It therefore gets a smaller grid of the same blocks, and the two
are compared by operation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import cuda, float32

TILE, THREADS, PER_BLOCK, COLUMNS, DEPTH = 16, 128, 4096, 1024, 216
STEPS, ENTRIES, BINS = 128, 4096, 256
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class OrdinaryKernel:
    """One kernel, its arguments for a number of blocks, and what it computes."""

    name: str
    operations: str
    """What counts as an operation."""
    make: Callable[[], Any]
    """Returns the kernel; called in the process that runs it, because the simulator replaces `cuda`."""
    arrays: Callable[[int], Arrays]
    """The arguments for a problem of this size, in order; the last is the result."""
    launch: Callable[[int], tuple[Any, Any]]
    """Grid and block for a problem of this size."""
    count: Callable[[int], int]
    """Operations of a problem of this size."""
    expected: Callable[[Arrays], np.ndarray]
    small: int
    large: int


def matrix_product() -> Any:
    """A thread per element of the product, as in Numba's manual."""

    @cuda.jit
    def product(A, B, C):
        i, j = cuda.grid(2)
        if i < C.shape[0] and j < C.shape[1]:
            s = float32(0)
            for k in range(A.shape[1]):
                s += A[i, k] * B[k, j]
            C[i, j] = s

    return product


def tiled_product() -> Any:
    """The same through tiles in shared memory."""

    @cuda.jit
    def product(A, B, C):
        A_tile = cuda.shared.array((TILE, TILE), float32)
        B_tile = cuda.shared.array((TILE, TILE), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        i, j = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
        s = float32(0)
        for first in range(0, A.shape[1], TILE):
            A_tile[y, x] = A[i, first + x]
            B_tile[y, x] = B[first + y, j]
            cuda.syncthreads()
            for k in range(TILE):
                s += A_tile[y, k] * B_tile[k, x]
            cuda.syncthreads()
        C[i, j] = s

    return product


def vector_sum() -> Any:
    """A thread per element."""

    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    return add


def reduction() -> Any:
    """A block sums 4096 elements: each thread a few, then a tree in shared memory."""

    @cuda.jit
    def reduce(a, sums):
        partial = cuda.shared.array(THREADS, float32)
        t = cuda.threadIdx.x
        s = float32(0)
        for i in range(cuda.blockIdx.x * PER_BLOCK + t, (cuda.blockIdx.x + 1) * PER_BLOCK, THREADS):
            s += a[i]
        partial[t] = s
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if t < half:
                partial[t] += partial[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            sums[cuda.blockIdx.x] = partial[0]

    return reduce


def softmax() -> Any:
    """A block per row: its maximum, the sum of exponentials, the result."""

    @cuda.jit
    def row_softmax(x, y):
        partial = cuda.shared.array(THREADS, float32)
        row, t = cuda.blockIdx.x, cuda.threadIdx.x
        m = float32(-math.inf)
        for j in range(t, COLUMNS, THREADS):
            m = max(m, x[row, j])
        partial[t] = m
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if t < half:
                partial[t] = max(partial[t], partial[t + half])
            cuda.syncthreads()
            half //= 2
        m = partial[0]
        cuda.syncthreads()
        s = float32(0)
        for j in range(t, COLUMNS, THREADS):
            s += math.exp(x[row, j] - m)
        partial[t] = s
        cuda.syncthreads()
        half = THREADS // 2
        while half > 0:
            if t < half:
                partial[t] += partial[t + half]
            cuda.syncthreads()
            half //= 2
        s = partial[0]
        for j in range(t, COLUMNS, THREADS):
            y[row, j] = math.exp(x[row, j] - m) / s

    return row_softmax


def stencil() -> Any:
    """The mean of four neighbours, a thread per point."""

    @cuda.jit
    def smooth(a, b):
        i, j = cuda.grid(2)
        if 0 < i < a.shape[0] - 1 and 0 < j < a.shape[1] - 1:
            b[i, j] = (a[i - 1, j] + a[i + 1, j] + a[i, j - 1] + a[i, j + 1]) * float32(0.25)

    return smooth


def indirect_sum() -> Any:
    """Loads at unrelated addresses, whose sectors have to be told apart."""

    @cuda.jit
    def indirect(x, places, sums):
        i = cuda.grid(1)
        s = float32(0)
        for k in range(STEPS):
            s += x[places[(i + 33 * k) % ENTRIES]]
        sums[i] = s

    return indirect


def maxima() -> Any:
    """Atomics, of which some meet at one address: the last place of each value."""

    @cuda.jit
    def last_places(values, places):
        i = cuda.grid(1)
        for k in range(STEPS):
            j = (i + 33 * k) % ENTRIES
            cuda.atomic.max(places, values[j], j)

    return last_places


def iteration() -> Any:
    """Numbers without arrays, with which Python computes faster than with elements of arrays."""

    @cuda.jit
    def iterate(x):
        i = cuda.grid(1)
        s = float(i)
        for _ in range(STEPS):
            s = s * 0.5 + math.sqrt(s + 1.0) / 3.0
        x[i] = s

    return iterate


def _indirect_arrays(blocks: int) -> Arrays:
    places = np.random.default_rng(0).integers(0, ENTRIES, ENTRIES)
    return {"x": _random((ENTRIES,))[0], "places": places, "sums": np.zeros(blocks * THREADS, np.float32)}


def _maxima_arrays(blocks: int) -> Arrays:
    values = np.random.default_rng(0).integers(0, BINS, ENTRIES)
    return {"values": values, "places": np.zeros(BINS, np.int64)}


def _maxima(arrays: Arrays) -> np.ndarray:
    found = np.zeros(BINS, np.int64)
    np.maximum.at(found, arrays["values"], np.arange(ENTRIES))
    return found


def _visited(threads: int) -> np.ndarray:
    return (np.arange(threads)[:, None] + 33 * np.arange(STEPS)) % ENTRIES


def _iterated(arrays: Arrays) -> np.ndarray:
    s = np.arange(len(arrays["x"]), dtype=float)
    for _ in range(STEPS):
        s = s * 0.5 + np.sqrt(s + 1.0) / 3.0
    return s


def _random(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.random(shape, dtype=np.float32) for shape in shapes]


def _product_arrays(n: int, depth: int) -> Arrays:
    A, B = _random((n, depth), (depth, n))
    return {"A": A, "B": B, "C": np.zeros((n, n), np.float32)}


def _product(arrays: Arrays) -> np.ndarray:
    return arrays["A"].astype(float) @ arrays["B"]


def _vectors(n: int) -> Arrays:
    a, b = _random((n,), (n,))
    return {"a": a, "b": b, "c": np.zeros(n, np.float32)}


def _softmax(arrays: Arrays) -> np.ndarray:
    powers = np.exp(arrays["x"].astype(float))
    return powers / powers.sum(axis=1, keepdims=True)


def _smooth(arrays: Arrays) -> np.ndarray:
    a, b = arrays["a"].astype(float), np.zeros(arrays["a"].shape)
    b[1:-1, 1:-1] = (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) / 4
    return b


KERNELS = (
    OrdinaryKernel(
        "matrix product", "multiply-adds", matrix_product, lambda n: _product_arrays(n, DEPTH),
        lambda n: ((-(-n // TILE), -(-n // TILE)), (TILE, TILE)), lambda n: n * n * DEPTH, _product, 32, DEPTH,
    ),
    OrdinaryKernel(
        "tiled matrix product", "multiply-adds", tiled_product, lambda n: _product_arrays(n, 14 * TILE),
        lambda n: ((n // TILE, n // TILE), (TILE, TILE)), lambda n: n * n * 14 * TILE, _product, 32, 14 * TILE,
    ),
    OrdinaryKernel(
        "vector sum", "elements", vector_sum, _vectors,
        lambda n: (-(-n // THREADS), THREADS), lambda n: n, lambda arrays: arrays["a"] + arrays["b"], 1 << 14, 10**7,
    ),
    OrdinaryKernel(
        "reduction", "elements", reduction,
        lambda n: {"a": _random((n * PER_BLOCK,))[0], "sums": np.zeros(n, np.float32)},
        lambda n: (n, THREADS), lambda n: n * PER_BLOCK,
        lambda arrays: arrays["a"].reshape(-1, PER_BLOCK).sum(axis=1, dtype=float), 16, 2442,
    ),
    OrdinaryKernel(
        "softmax of rows", "elements", softmax,
        lambda n: {"x": _random((n, COLUMNS))[0], "y": np.zeros((n, COLUMNS), np.float32)},
        lambda n: (n, THREADS), lambda n: n * COLUMNS, _softmax, 32, 9766,
    ),
    OrdinaryKernel(
        "stencil", "points", stencil, lambda n: {"a": _random((n, n))[0], "b": np.zeros((n, n), np.float32)},
        lambda n: ((-(-n // TILE), -(-n // TILE)), (TILE, TILE)), lambda n: n * n, _smooth, 128, 3163,
    ),
    OrdinaryKernel(
        "indirect loads", "loads", indirect_sum, _indirect_arrays,
        lambda n: (n, THREADS), lambda n: n * THREADS * STEPS,
        lambda arrays: arrays["x"][arrays["places"]][_visited(len(arrays["sums"]))].sum(axis=1, dtype=float),
        2, 610,
    ),
    OrdinaryKernel(
        "atomic maxima", "atomics", maxima, _maxima_arrays,
        lambda n: (n, THREADS), lambda n: n * THREADS * STEPS, _maxima, 2, 610,
    ),
    OrdinaryKernel(
        "one iteration", "steps", iteration, lambda n: {"x": np.zeros(n * THREADS)},
        lambda n: (n, THREADS), lambda n: n * THREADS * STEPS, _iterated, 16, 610,
    ),
)  # fmt: skip
