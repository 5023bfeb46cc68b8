"""Appending to a paged cache: kernels, claim and registration. README.md explains the algorithm.

A warp has a new token, and copies its rows of K and V in vectors of up to 16 bytes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from harness import AppendProblem, Launch, Plan, Registry, Traffic, Variant
from variants._tiles.sectors import LANES, SECTOR_BYTES, run_bytes

THREADS = 128
LARGEST_VECTOR_BYTES = 16
CUDA_VECTORS = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
"""CUDA's type of a vector of so many bytes."""
MOST_ELEMENTS = 2**31 - 1 - LANES
"""Elements of a token are counted in 32 bits, up to one step of a warp beyond the last."""

Kernel = Callable[[AppendProblem], Any]
"""Returns the kernel in one language."""


def vector_bytes(problem: AppendProblem) -> int:
    """Return the largest power of two, up to 16, that divides the bytes of a row: rows begin at multiples of it."""
    return math.gcd(problem.head_dim * problem.itemsize_bytes, LARGEST_VECTOR_BYTES)


def kernel_in_cupy(problem: AppendProblem) -> Any:
    """The CUDA kernel."""
    from variants._tiles.rawkernel import raw_kernel

    size = vector_bytes(problem)
    row = problem.head_dim * problem.itemsize_bytes // size
    options = (f"-DTHREADS={THREADS}", f"-DROW={row}", f"-DPAGE={problem.page_size}")
    return raw_kernel("kv_append/append", "append", options, (), f"using Vector = {CUDA_VECTORS[size]};\n")


def kernel_in_numba(problem: AppendProblem) -> Any:
    """The Numba kernel."""
    from variants.kv_append.append.numba_kernel import append_kernel

    size = vector_bytes(problem)
    return append_kernel(size, problem.head_dim * problem.itemsize_bytes // size, problem.page_size)


def halvings(problem: AppendProblem) -> int:
    """Return how many elements of `starts` a warp compares: ceil(log2(sequences))."""
    return (problem.sequences - 1).bit_length()


def plan(kernel: Kernel, problem: AppendProblem) -> Plan:
    """One launch, a warp per new token."""
    p = problem
    blocks = max(1, -(-p.tokens * LANES // THREADS))
    sizes = (p.tokens, p.sequences, 2 ** halvings(p) // 2, p.table_shape[1], p.kv_heads)
    args = ("K_new", "V_new", "starts", "table", "lengths", "K", "V", *map(np.int32, sizes))
    return Plan(launches=(Launch(kernel(p), (blocks,), (THREADS,), args),))


def claim(problem: AppendProblem) -> Traffic:
    """The bytes of README.md, at the `sectors` level, for rows of any length."""
    p, d, itemsize = problem, problem.head_dim, problem.itemsize_bytes
    per_lane, elements = vector_bytes(p) // itemsize, p.kv_heads * d
    new = run_bytes(np.arange(p.tokens, dtype=np.int64) * elements, elements, itemsize, per_lane).sum()
    # A request ends after 32 lanes, and its runs in the pool at the end of a head's row.
    begin = np.union1d(np.arange(0, elements, LANES * per_lane), np.arange(0, elements, d))
    length = np.diff(np.append(begin, elements))
    rows = np.concatenate([np.arange(old, new) % p.page_size for old, new in zip(p.old_lengths, p.lengths)])
    row, count = np.unique(rows, return_counts=True)
    written = run_bytes(row[:, None] * d + begin % d, length, itemsize, per_lane).sum(axis=1) @ count
    # starts[b + 1], the length, the entry of the table, and what is compared.
    found = p.tokens * (halvings(p) + 3) * SECTOR_BYTES
    return Traffic(int(2 * new + found), int(2 * written))


def unsupported(problem: AppendProblem) -> str | None:
    """Return the reason why the problem is not supported, or None."""
    if problem.kv_heads * problem.head_dim > MOST_ELEMENTS:
        return (
            f"a token has {problem.kv_heads * problem.head_dim:,} elements; kernels here count up to {MOST_ELEMENTS:,}"
        )
    return None


def register(registry: Registry) -> None:
    """Add `append-cupy` and `append-numba`."""
    for language, kernel in (("cupy", kernel_in_cupy), ("numba", kernel_in_numba)):
        registry.add(
            Variant(
                name=f"append-{language}",
                operation="kv-append",
                algorithm="append",
                backend=language,
                idea="a warp copies the rows of a token, up to 16 bytes per lane, to the slot that the table names",
                plan=functools.partial(plan, kernel),
                supports=unsupported,
                claim=claim,
            )
        )
