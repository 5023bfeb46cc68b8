"""Softmax that reads each row once: plan, claim and registration. ../README.md explains the algorithm.

What the claim adds to the formula there: rows that begin within a sector, and rows that do not fit in the registers of
a cluster, of which all but the first part is read twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from harness import Launch, Numerics, Plan, Registry, SoftmaxProblem, Traffic, Variant
from variants._tiles.sectors import run_bytes

NUMERICS = Numerics(functions="accurate", sums="nearest")
ELEMENTS = 16
"""Of a row, in the registers of a thread. It has 40 registers in all, so 1,536 threads fit on a multiprocessor and load
up to 96 KiB at once. With 32 elements, rows of 1,024 columns take 3 % more time (H200, float32)."""
WARP = 32
WARPS = 4
"""Of a block, where a warp has a row of its own."""
THREADS = 512
"""Of a block that has a row, or shares one with others: three such blocks fit on a multiprocessor."""
MOST_THREADS = 1024
"""Of a block that shares a row for which a cluster needs more."""
MOST_BLOCKS = 8
"""Of a cluster."""
VECTOR_BYTES = 16
"""Widest load of a thread."""
MOST_COLUMNS = 2**31 - 1 - MOST_BLOCKS * MOST_THREADS * ELEMENTS
"""Columns are counted in 32 bits, up to one part of a row beyond the last."""


class Sizes(NamedTuple):
    """What a kernel is compiled for."""

    vector: int
    """Adjacent elements that a thread loads at once: a piece."""
    pieces: int
    """Of a thread."""
    threads: int
    """Of a block, at most."""
    cluster: int = 1
    """Blocks that share a row."""
    is_shared: bool = True
    """Whether a row belongs to more than one warp."""
    has_parts: bool = False
    """Whether a row is longer than what its threads have in registers."""


@dataclass(frozen=True)
class Division:
    """How rows are divided among threads."""

    sizes: Sizes
    threads: int
    """Of a block that share a row."""
    rows: int = 1
    """Of a block."""

    @property
    def elements(self) -> int:
        """Of a row, in the registers of its threads."""
        return self.sizes.vector * self.sizes.pieces * self.threads * self.sizes.cluster


def division_of(problem: SoftmaxProblem) -> Division:
    """A row to a warp, where that has registers for it, else to a block, else to as few blocks of a cluster as have.

    Rows begin at multiples of a piece, and pieces are as wide as that allows.
    """
    vector = VECTOR_BYTES // problem.itemsize_bytes
    while problem.columns % vector:
        vector //= 2
    row_pieces = problem.columns // vector
    if problem.columns <= WARP * ELEMENTS:
        lane_pieces = -(-row_pieces // WARP)
        pieces = 1 << (lane_pieces - 1).bit_length()  # a power of two: each number is a kernel of its own
        return Division(Sizes(vector, pieces, WARP * WARPS, is_shared=False), WARP, WARPS)
    pieces, cluster = ELEMENTS // vector, 1
    while cluster < MOST_BLOCKS and problem.columns > cluster * THREADS * ELEMENTS:
        cluster *= 2
    threads = -(-row_pieces // (cluster * pieces * WARP)) * WARP
    most_threads = THREADS if threads <= THREADS else MOST_THREADS
    sizes = Sizes(vector, pieces, most_threads, cluster, has_parts=threads > MOST_THREADS)
    return Division(sizes, min(threads, MOST_THREADS))


Kernel = Callable[[Sizes, str], Any]
"""Returns the kernel for these sizes and a data type."""


def kernel_in_cupy(sizes: Sizes, dtype: str) -> Any:
    from variants._features import stored
    from variants._tiles.rawkernel import raw_kernel

    options = tuple(f"-D{name.upper()}={int(size)}" for name, size in sizes._asdict().items())
    return raw_kernel("softmax/on_chip", "on_chip_softmax", options, (*stored(dtype), ("_rows", "rows.cuh")))


def kernel_in_numba(sizes: Sizes, dtype: str) -> Any:
    from variants.softmax.on_chip.numba_kernel import on_chip_kernel

    return on_chip_kernel(sizes, dtype)


def register(registry: Registry) -> None:
    """Add `softmax-on-chip-cupy` and `softmax-on-chip-numba`."""
    for language, kernel in {"cupy": kernel_in_cupy, "numba": kernel_in_numba}.items():
        registry.add(
            Variant(
                name=f"softmax-on-chip-{language}",
                operation="softmax",
                algorithm="softmax-on-chip",
                backend=language,
                idea="each row stays in registers, of up to 8 blocks: one sweep",
                # A partial function of this module's, not a closure: it can be sent to worker processes.
                plan=functools.partial(plan, kernel),
                supports=unsupported,
                claim=claim,
                numerics=NUMERICS,
            )
        )


def plan(kernel: Kernel, problem: SoftmaxProblem) -> Plan:
    """One launch: a warp, a block or a cluster per row."""
    division = division_of(problem)
    cluster = division.sizes.cluster
    grid = (-(-problem.rows // division.rows) * cluster,)
    args = ("X", "Y", np.int32(problem.rows), np.int32(problem.columns))
    block = (division.threads, division.rows)
    launch = Launch(
        kernel(division.sizes, problem.dtype), grid, block, args, cluster=(cluster,) if cluster > 1 else None
    )
    return Plan((launch,))


def claim(problem: SoftmaxProblem) -> Traffic:
    """X and Y once, and what registers have no room for once more; every row is a run."""
    division = division_of(problem)
    first = np.arange(problem.rows, dtype=np.int64) * problem.columns
    run = functools.partial(run_bytes, itemsize_bytes=problem.itemsize_bytes, elements_per_lane=division.sizes.vector)
    matrix_bytes = int(run(first, problem.columns).sum())
    kept = min(problem.columns, division.elements)
    again_bytes = int(run(first + kept, problem.columns - kept).sum())
    return Traffic(read_bytes=matrix_bytes + again_bytes, write_bytes=matrix_bytes)


def unsupported(problem: SoftmaxProblem) -> str | None:
    """Why it does not support a problem, or None."""
    if problem.columns > MOST_COLUMNS:
        return f"columns is {problem.columns}; kernels here count up to {MOST_COLUMNS:,}"
    return None
