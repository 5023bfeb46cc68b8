"""Softmax of rows that are copied to shared memory in advance: plan, claim and registration. ../README.md explains the
algorithm.

What the claim adds to the formula there: rows that begin within a sector. A bulk copy reads the sectors of a tile's
rows once, and the quotients of a row are stored as one run. Persistent blocks take tiles with an atomic. Rows that are
no whole pieces, or longer than a cluster has room for, are left to softmax-on-chip.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from harness import Launch, Numerics, Plan, Registry, SoftmaxProblem, Traffic, Variant
from variants._tiles.sectors import SECTOR_BYTES, run_bytes
from variants.softmax import on_chip

NUMERICS = Numerics(functions="__expf", sums="nearest")
"""In float32, exponentials are accurate."""
WARP = 32
PIECE_BYTES = 16
"""What a thread loads at once. Bulk copies are whole pieces, too."""
WORD_BYTES, LINE_BYTES = 4, 128
"""Of shared memory. A bulk copy reads a sector of global memory once for each line that it fills from there."""
ELEMENTS, MOST_ELEMENTS = 32, 64
"""Of a row, in the registers of a thread. It has twice as many registers for the latter."""
RESIDENT_THREADS = {ELEMENTS: 1024, MOST_ELEMENTS: 512}
"""Of a multiprocessor, for which kernels leave registers."""
MOST_RESIDENT = 32
"""Blocks of a multiprocessor."""
MOST_THREADS = 1024
"""Of a block."""
MOST_BLOCKS = 8
"""Of a cluster."""
MOST_COLUMNS = MOST_BLOCKS * RESIDENT_THREADS[MOST_ELEMENTS] * MOST_ELEMENTS
MOST_ROWS = 2**30
"""Rows are counted in 32 bits, up to some tiles beyond the last."""
FEWEST_TILE_ROWS, MOST_TILE_ROWS, TILE_BYTES = 2, 8, 1024
"""Of a tile, where a warp has a row of its own; and about how many bytes a tile of short rows has."""
LONG = {2: 8192, 4: 16384}
"""Columns of rows for which blocks are persistent if they are longer, by bytes of an element: enough others that run at
the same time copy their tiles while one computes."""
WIDE, LONGEST = 4096, 131072
"""Columns for which more elements per thread are faster than more threads: if they are more than the first, up to
`LONG`, in 16 bits; and if they are more than the second."""
SHARE = {2: 32768, 4: 16384}
"""Columns of a row that a block of a cluster has, up to as many blocks."""
SHARED_BYTES = 225 * 1024
"""Of a multiprocessor, for stages of all its blocks."""
BLOCK_BYTES = 1536
"""Of shared memory, that each block takes besides."""
CLUSTERS = {1: 132, 2: 66, 4: 30, 8: 15}
"""Of a block on each multiprocessor, that run at once on an H100 SXM or H200, whose groups of multiprocessors are not
all equally large: clusters lie within one. More would wait for the others to end; fewer are right, but slower."""


class Sizes(NamedTuple):
    """What a kernel is compiled for."""

    pieces: int
    """Of a thread, 16 bytes each."""
    threads: int
    """Of a block."""
    cluster: int = 1
    """Blocks that share a row."""
    stages: int = 1
    """Tiles that a block has room for."""
    is_shared: bool = True
    """Whether a row belongs to more than one warp."""
    is_persistent: bool = True
    """Whether blocks take tile after tile. Else there is a block, or a cluster, for each."""


@dataclass(frozen=True)
class Division:
    """How rows are divided among threads."""

    sizes: Sizes
    share: int
    """Pieces of a row that a block has, at most."""
    rows: int = 1
    """Of a tile."""
    blocks_per_sm: int = 1
    """That run on a multiprocessor at once, at least."""

    def clusters(self, problem: SoftmaxProblem) -> int:
        """Of the grid. If they are persistent, as many as run at once, for each of which a tile is left."""
        sizes, tiles = self.sizes, -(-problem.rows // self.rows)
        if not sizes.is_persistent:
            return tiles
        return min(tiles, max(1, CLUSTERS[sizes.cluster] * self.blocks_per_sm))

    @property
    def stage_bytes(self) -> int:
        """Of a tile, in the shared memory of a block: whole lines."""
        return -(-self.rows * self.share * PIECE_BYTES // LINE_BYTES) * LINE_BYTES


def division_of(problem: SoftmaxProblem) -> Division:
    """A row to a warp, where that has registers for it, else to as few blocks of a cluster as have.

    A persistent block that is alone on its multiprocessor has two stages. Two blocks overlap each other.
    """
    columns, itemsize = problem.columns, problem.itemsize_bytes
    vector = PIECE_BYTES // itemsize
    row_pieces, pieces = columns // vector, ELEMENTS // vector
    if columns <= WARP * ELEMENTS:
        pieces = 1 << (-(-row_pieces // WARP) - 1).bit_length()  # each number is a kernel of its own
        rows = min(max(FEWEST_TILE_ROWS, TILE_BYTES // (row_pieces * PIECE_BYTES)), MOST_TILE_ROWS)
        return _division(Sizes(pieces, WARP * rows, is_shared=False, is_persistent=False), row_pieces, rows)
    if columns <= LONG[itemsize]:
        elements = MOST_ELEMENTS if itemsize == 2 and columns > WIDE else ELEMENTS
        threads = _threads(row_pieces, elements // vector)
        return _division(Sizes(elements // vector, threads, is_persistent=False), row_pieces, elements=elements)
    cluster = 1
    while cluster < MOST_BLOCKS and columns > cluster * SHARE[itemsize]:
        cluster *= 2
    # Whole warps' requests: a row is stored as one run, whichever block has which part.
    share = row_pieces if cluster == 1 else -(-row_pieces // (cluster * WARP)) * WARP
    elements = MOST_ELEMENTS if columns > LONGEST else ELEMENTS
    pieces = elements // vector
    alone = _division(Sizes(pieces, _threads(share, pieces), cluster=cluster), share, elements=elements)
    if alone.blocks_per_sm > 1 or 2 * alone.stage_bytes + BLOCK_BYTES > SHARED_BYTES:
        return alone
    return _division(alone.sizes._replace(stages=2), share, elements=elements)


def _threads(pieces: int, pieces_of_thread: int) -> int:
    """Of whole warps, that have so many pieces."""
    return -(-pieces // (pieces_of_thread * WARP)) * WARP


def _division(sizes: Sizes, share: int, rows: int = 1, elements: int = ELEMENTS) -> Division:
    """With as many blocks on a multiprocessor as registers and shared memory allow."""
    division = Division(sizes, share, rows)
    by_registers = RESIDENT_THREADS[elements] // sizes.threads
    by_memory = SHARED_BYTES // (sizes.stages * division.stage_bytes + BLOCK_BYTES)
    return replace(division, blocks_per_sm=max(1, min(by_registers, by_memory, MOST_RESIDENT)))


Kernel = Callable[[Sizes, str], Any]
"""Returns the kernel for these sizes and a data type."""


def kernel_in_cupy(sizes: Sizes, dtype: str) -> Any:
    from variants._features import stored
    from variants._tiles.rawkernel import raw_kernel

    options = tuple(f"-D{name.upper()}={int(size)}" for name, size in sizes._asdict().items())
    headers = (("softmax/pipelined", file) for file in ("bulk_copies.cuh", "exchange.cuh"))
    common = (*stored(dtype), ("_rows", "rows.cuh"), *headers)
    return raw_kernel("softmax/pipelined", "pipelined_softmax", options, common)


def kernel_in_numba(sizes: Sizes, dtype: str) -> Any:
    from variants.softmax.pipelined.numba_kernel import pipelined_kernel

    return pipelined_kernel(sizes, dtype)


def register(registry: Registry) -> None:
    """Add `softmax-pipelined-cupy` and `softmax-pipelined-numba`."""
    languages = {
        "cupy": (kernel_in_cupy, on_chip.kernel_in_cupy),
        "numba": (kernel_in_numba, on_chip.kernel_in_numba),
    }
    for language, kernels in languages.items():
        registry.add(
            Variant(
                name=f"softmax-pipelined-{language}",
                operation="softmax",
                algorithm="softmax-pipelined",
                backend=language,
                idea="each row read once, by bulk copies that run ahead of the computation",
                # A partial function of this module's, not a closure: it can be sent to worker processes.
                plan=functools.partial(_plan, *kernels),
                supports=on_chip.unsupported,
                claim=_claim,
                numerics=NUMERICS,
            )
        )


def is_pipelined(problem: SoftmaxProblem) -> bool:
    """Whether rows can be copied, and fit. Others are left to softmax-on-chip."""
    is_whole_pieces = problem.columns * problem.itemsize_bytes % PIECE_BYTES == 0
    return is_whole_pieces and problem.columns <= MOST_COLUMNS and problem.rows <= MOST_ROWS


def _plan(kernel: Kernel, otherwise: on_chip.Kernel, problem: SoftmaxProblem) -> Plan:
    """One launch: a block for each tile, or as many as run at once if they are persistent."""
    if not is_pipelined(problem):
        return on_chip.plan(otherwise, problem)
    division = division_of(problem)
    sizes = division.sizes
    clusters = division.clusters(problem)
    launch = Launch(
        kernel(sizes, problem.dtype),
        (clusters * sizes.cluster,),
        (sizes.threads,),
        ("X", "Y", np.int32(problem.rows), np.int32(problem.columns)),
        shared_bytes=sizes.stages * division.stage_bytes,
        cluster=(sizes.cluster,) if sizes.cluster > 1 else None,
    )
    return Plan((launch,))


def _claim(problem: SoftmaxProblem) -> Traffic:
    """X and Y once."""
    if not is_pipelined(problem):
        return on_chip.claim(problem)
    p, division = problem, division_of(problem)
    run = functools.partial(run_bytes, itemsize_bytes=p.itemsize_bytes)
    vector = PIECE_BYTES // p.itemsize_bytes
    # Tiles, and of each the columns of the blocks of a cluster.
    first_rows = np.arange(0, p.rows, division.rows, dtype=np.int64)[:, None]
    first_columns = np.arange(division.sizes.cluster, dtype=np.int64) * division.share * vector
    columns = np.minimum(p.columns - first_columns, division.share * vector)
    elements = np.minimum(division.rows, p.rows - first_rows) * columns
    read = run(first_rows * p.columns + first_columns, elements, elements_per_lane=WORD_BYTES // p.itemsize_bytes)
    written = run(np.arange(p.rows, dtype=np.int64) * p.columns, p.columns, elements_per_lane=vector)
    taken_bytes = 0
    if division.sizes.is_persistent:
        # Each cluster takes a tile until none is left, besides those that it begins with.
        clusters = division.clusters(p)
        takes = max(0, len(first_rows) - division.sizes.stages * clusters) + clusters
        taken_bytes = takes * SECTOR_BYTES
    return Traffic(read_bytes=int(read.sum()) + taken_bytes, write_bytes=int(written.sum()) + taken_bytes)
