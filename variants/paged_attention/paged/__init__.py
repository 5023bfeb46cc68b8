"""PagedAttention, plainly: a block per sequence and key/value head walks over the pages of its sequence.

Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", arXiv 2309.06180,
section 4.1: the kernel looks up each page in the table and fetches it from wherever it lies. The tiles are those of
FlashAttention-2 (see attention/fa2): the maximum m, the denominator l and an O that is not divided yet stay on chip
while the keys go by, so that a sequence may be of any length, where the paper's kernel keeps all its scores in shared
memory. A block has the rows of all query heads that share K and V, packed: these are read once per tile of rows.

What it does not do is to divide a long sequence: the longest one of a batch is walked over by as many blocks as a short
one, while the rest of the GPU is idle. `paged-split-kv` does.

Bytes, per key/value head of a sequence of L keys, with R = group q_len rows, T_r = ceil(R / B_r) tiles of them, of
which tile i sees E_i keys (E_i = L where q_len is 1):

    read       X_q + T_r 4 * 32 + sum_i (K and V of E_i keys, in whole tiles up to L) + sum_i ceil(E_i / page) 4 * 32
    written    X_q + 4 R

With a window, tiles of keys and pages begin with those of the first key that a row sees. Slopes and sinks are read once
per row of the tile, by a warp for 4 rows at a time.

With `q_lengths`, R, T_r and E_i are those of each sequence, and a grid has blocks for the most rows: each block reads
where the rows of its sequence begin and end, 4 * 2 * 32 bytes, and ends if there are none for it. X_q counts the
sectors of rows that are no run.

Each of the 4 warps asks for the length and for each entry of the table itself, a sector each time. Copies are runs of
consecutive elements (see _tiles/sectors.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, PagedProblem, Plan, Registry, Traffic, Variant
from variants._features import (
    BAND_FEATURES,
    LAYOUT_FEATURE,
    SCORE_FEATURES,
    arguments,
    factor,
    scores,
    sink,
    sink_bytes,
    term_bytes,
)
from variants._mma.splits import slope_sectors
from variants._paged import (
    FLOAT32_BYTES,
    PackedRows,
    in_numba,
    key_bytes,
    limits,
    of_every_warp,
    pool,
    pools,
    row_tiles,
    rows_aligned_to,
    unsupported,
    window,
)
from variants._paged.chunks import (
    Q_LENGTHS_FEATURE,
    chunk_bytes,
    chunks,
    chunks_argument,
    ragged_tiles,
    start_bytes,
    with_equal_rows,
)
from variants._paged.strided_bytes import depends_on_pages, element_copy, pool_bytes
from variants._tiles import BLOCK, WARPS, Tile, blocks
from variants._tiles.space import P_floats, P_rows, rows_floats, tile_space

NUMERICS = Numerics(
    scores="float32",
    weights="float32",
    functions="__expf",
    tanh="accurate",
    sums="nearest",
    one_score=True,
    divides_last=True,
)
"""Nothing is rounded to 16 bits before O, which is divided once."""
LEAST_KEYS = 16
"""Minimum keys per tile: every page size is a multiple of it, and it is whole sectors in every dtype."""
Sizes = Mapping[str, int]
Kernel = Callable[[PagedProblem, Tile], Any]
"""The kernel in one language."""


def cupy_kernels(problem: PagedProblem, tile: Tile) -> Any:
    """The CUDA kernel."""
    from variants._tiles.rawkernel import SIZES, STRIDED, tiles_kernel

    p, sizes, is_strided = problem, {**SIZES, "PAGE": problem.page_size}, not problem.layout.is_dense
    chosen = limits(p), scores(p), sink(p), window(p), pool(p), chunks(p)
    headers = (*(STRIDED if is_strided else ()), *ragged_tiles(p))
    return tiles_kernel("paged_attention/paged", "paged", p, tile, chosen, sizes, is_strided, headers)


def numba_kernels(problem: PagedProblem, tile: Tile) -> Any:
    """The Numba kernel."""
    from variants.paged_attention.paged.numba_kernel import paged_kernel

    p = problem
    chosen = in_numba(p, tile.Br, tile.Bc)
    features = p.window is not None, rows_aligned_to(p), p.q_lengths is not None
    return paged_kernel(p.head_dim, tile, p.dtype, p.page_size, chosen, *features)


def plan(kernel: Kernel, problem: PagedProblem, tile: Sizes | None = None) -> Plan:
    """One launch; `tile` is the first of `tiles(problem)` unless given."""
    p, sizes = problem, Tile(**(tile or tiles(problem)[0]))
    lengths = (chunks_argument(p), np.int32(p.table_shape[1]))
    K_and_V = pools(p) if kernel is cupy_kernels else ("K", "V")  # Numba's arrays know their strides
    arrays = ("Q", *K_and_V, "table", "lengths", "O", "lse")
    args = (*arrays, *lengths, np.int32(p.group), np.float32(factor(p)), *arguments((limits(p), scores(p), sink(p))))
    launch = Launch(kernel(p, sizes), (row_tiles(p, sizes.Br), p.kv_heads, p.sequences), BLOCK, args)
    return Plan(launches=(launch,), buffers=(Buffer("lse", p.lse_shape, "float32"),))


def claim(problem: PagedProblem, tile: Sizes | None = None) -> Traffic | None:
    """The bytes above, at the `sectors` level; None in a layout in which they depend on which pages the table names."""
    p, sizes = problem, Tile(**(tile or tiles(problem)[0]))
    if depends_on_pages(p, element_copy(p)):
        return None
    blocks_of_rows = row_tiles(p, sizes.Br) * p.kv_heads * p.sequences
    read = start_bytes(p, WARPS, blocks_of_rows) + sum(_bytes_of_keys(each, sizes) for each in with_equal_rows(p))
    widths = (p.head_dim, p.itemsize_bytes), (1, FLOAT32_BYTES)
    if p.q_lengths is None:
        q_bytes, lse_bytes = (int(PackedRows(p, sizes.Br).tile_bytes(*each).sum()) for each in widths)
    else:
        q_bytes, lse_bytes = (chunk_bytes(p, sizes.Br, *each) for each in widths)
    return Traffic(q_bytes + read, q_bytes + lse_bytes)


def _bytes_of_keys(problem: PagedProblem, sizes: Tile) -> int:
    """Bytes of keys, of how many there are, of the table and of score terms, where sequences have equally many rows."""
    p, packed = problem, PackedRows(problem, sizes.Br)
    ends = packed.ends
    first_tile = np.minimum(packed.firsts, ends) // sizes.Bc * sizes.Bc
    keys = np.minimum(blocks(ends, sizes.Bc) * sizes.Bc, packed.lengths) - first_tile
    pages = blocks(ends, p.page_size) - first_tile // p.page_size
    entries = p.kv_heads * of_every_warp(WARPS) * (1 + pages).sum()
    if p.layout.is_dense:
        fetched = 2 * p.kv_heads * key_bytes(p, keys, sizes.Bc)
    else:
        fetched = pool_bytes(p, first_tile, first_tile + keys, sizes.Bc, element_copy(p))
    # A warp has 4 rows of every 16.
    runs = [(row, row + 3) for row in range(0, blocks(sizes.Br, 16) * 16, 4)]
    heads = np.arange(p.kv_heads, dtype=np.int64)[:, None]
    readers = p.sequences * int(slope_sectors(p, heads, packed.first_rows, runs).sum())
    return int(entries + fetched.sum()) + term_bytes(p, readers) + sink_bytes(p, readers)


def tiles(problem: PagedProblem) -> list[dict[str, int]]:
    """What may be chosen, the default first: few rows, for a group has few, and keys that divide a page."""
    Bc = 2 * LEAST_KEYS if problem.page_size % (2 * LEAST_KEYS) == 0 and problem.head_dim <= 128 else LEAST_KEYS
    space = tile_space(problem.head_dim, Tile(LEAST_KEYS, Bc), shared_floats)
    return [tile for tile in space if tile["Bc"] % LEAST_KEYS == 0 and problem.page_size % tile["Bc"] == 0]


def shared_floats(head_dim: int, tile: Tile) -> int:
    """Q, one of K_j and V_j, P, and l and m of every row."""
    return rows_floats(tile.Br + tile.Bc, head_dim) + P_floats(tile) + 2 * P_rows(tile)


def register(registry: Registry) -> None:
    """Add `paged-cupy` and `paged-numba`."""
    for language, kernel in (("cupy", cupy_kernels), ("numba", numba_kernels)):
        registry.add(
            Variant(
                name=f"paged-{language}",
                operation="paged-attention",
                algorithm="paged",
                backend=language,
                idea="PagedAttention with online softmax: a block walks over the pages of its sequence",
                plan=functools.partial(plan, kernel),
                supports=unsupported,
                claim=claim,
                tiles=tiles,
                takes=(*BAND_FEATURES, *SCORE_FEATURES, LAYOUT_FEATURE, Q_LENGTHS_FEATURE),
                invariant_to=("batch", "padding"),
                numerics=NUMERICS,
            )
        )
