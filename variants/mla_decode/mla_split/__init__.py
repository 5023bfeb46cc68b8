"""Latent attention, decoding, with the keys of each sequence split over thread blocks (Flash-Decoding).

DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1: all heads of a sequence read one compressed row per key,
whose first `latent_dim` elements are its value, too. A block has B_r rows of Q, of any heads of its sequence, and a
split of the keys. A row of the cache is loaded once for its B_r scores and its B_r products with weights, where
attention with expanded keys and values would load both for each head. A second kernel puts the splits of each row
together, as in Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference".

Bytes, per sequence of L keys, with R = heads q_len rows in T_r = ceil(R / B_r) tiles, w bytes per element, d =
latent_dim elements per value and e = latent_dim + rope_dim per row, S = ceil(L / split) splits of n_s keys, where q_len
is 1:

    split      S R e w + T_r sum_s (n_s e w + 4 * 32 (1 + pages of the split)) read, S R 4 d + l and m written
    combine    R (4 * 32 + S (4 d + 8 * 32)) read, R (d w + 32) written

Each of the 4 warps asks for the length, for each entry of the table and for each l and m itself, a sector each time.
The grid has as many splits for each sequence as the longest one has; a block without keys reads the length alone.
Widths are multiples of 16 elements, so that rows and their parts are whole sectors.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from harness import Buffer, Launch, MlaProblem, Numerics, Plan, Registry, Reshaped, Traffic, Variant
from variants import _mla
from variants._features import FOLDER
from variants._mla import (
    FLOAT32_BYTES,
    PARTS,
    causal,
    combine_bytes,
    combine_kernel,
    combine_launch,
    ends_of_tiles,
    most_splits,
    part_buffers,
    rows_of_sequence,
)
from variants._tiles import BLOCK, MORE_SHARED_BYTES, THREADS_X, THREADS_Y, WARPS, Tile, blocks
from variants._tiles.sectors import SECTOR_BYTES, run_bytes
from variants._tiles.space import P_floats, P_rows, rows_floats

NUMERICS = Numerics(
    scores="float32", weights="float32", functions="__expf", sums="nearest", one_score=True, divides_last=True
)
"""Nothing is rounded to 16 bits before O, which is divided once."""
WIDTH_UNIT = 16
"""Widths are multiples of it: rows and their parts are then whole sectors in every dtype."""
ROWS, KEYS, SPLITS = (16, 32), (16, 32), (512, 64, 128, 256, 1024, 2048)
"""Choices of tile sizes, the defaults first."""
LONGEST_LATENT, LONGEST_ROPE = 512, 128
"""A thread has an eighth of a row of O."""
Sizes = Mapping[str, int]
Kernels = Callable[[MlaProblem, Tile, int], tuple[Any, Any]]
"""The two kernels in one language."""


def cupy_kernels(problem: MlaProblem, tile: Tile, split: int) -> tuple[Any, Any]:
    """Return the CUDA kernels."""
    from variants._features import declarations, stored
    from variants._tiles.rawkernel import BELOW_TILES, SIZES, STRIDED, raw_kernel, tile_sizes

    p = problem
    sizes = {
        **SIZES, "BLOCKS_PER_SM": 2, "D": p.latent_dim, "DV": p.latent_dim, "ROPE": p.rope_dim, "PAGE": p.page_size,
        "SPLIT": split,
    }  # fmt: skip
    options = (*tile_sizes(tile), *(f"-D{name}={size}" for name, size in sizes.items()))
    files, using = declarations((causal(p),))
    headers = (*BELOW_TILES, *files, (FOLDER, "layout.cuh"), ("_tiles", "tiles.cuh"), *STRIDED)
    common = tuple(dict.fromkeys((*stored(p.dtype), *headers)))
    return raw_kernel("mla_decode/mla_split", "mla_split", options, common, using), combine_kernel(p, split)


def numba_kernels(problem: MlaProblem, tile: Tile, split: int) -> tuple[Any, Any]:
    """Return the Numba kernels."""
    from variants._features.numba_features import numba_features
    from variants.mla_decode.mla_split import numba_kernel

    p, chosen = problem, numba_features(False, None, (), False, False, tile.Br, tile.Bc, THREADS_X * THREADS_Y)
    return (
        numba_kernel.split_kernel(p.latent_dim, p.rope_dim, tile, split, p.dtype, p.page_size, chosen),
        numba_kernel.combine_kernel(p.latent_dim, split, p.dtype, chosen),
    )


def plan(kernels: Kernels, problem: MlaProblem, tile: Sizes | None = None) -> Plan:
    """Two launches, or the second alone where no sequence has a key; `tile`: the first of `tiles(problem)` if None."""
    p, (sizes, split) = problem, _sizes(problem, tile)
    of_split, of_rows = kernels(p, sizes, split)
    rows, splits = rows_of_sequence(p), most_splits(p, split)
    Q = Reshaped("Q", (p.sequences, rows, p.head_dim))
    numbers = (np.int32(p.q_len), np.int32(p.table_shape[1]), np.int32(p.heads), np.float32(p.tau))
    args = (Q, "C", "table", "lengths", *PARTS, *numbers, causal(p).argument)
    grid = (int(blocks(rows, sizes.Br)), splits, p.sequences)
    first = (Launch(of_split, grid, BLOCK, args, shared_bytes(p, sizes)),) if splits else ()
    return Plan(
        launches=(*first, combine_launch(of_rows, p, splits)),
        buffers=(*part_buffers(p, splits), Buffer("lse", p.lse_shape, "float32")),
    )


def claim(problem: MlaProblem, tile: Sizes | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, (sizes, split) = problem, _sizes(problem, tile)
    splits, of_every_warp = most_splits(p, split), WARPS * SECTOR_BYTES

    # (sequences, splits, tiles of rows): the keys of each block.
    first_row, rows, ends = ends_of_tiles(p, sizes.Br)
    first_key = np.arange(splits, dtype=np.int64)[None, :, None] * split
    keys = np.clip(ends[:, None] - first_key, 0, split)
    there = keys > 0
    pages = np.where(there, blocks(first_key + keys, p.page_size) - first_key // p.page_size, 0)
    read = (keys + there * rows) * p.head_dim * p.itemsize_bytes + of_every_warp * (1 + pages)
    number = np.arange(p.sequences, dtype=np.int64)[:, None, None] * splits + np.arange(splits)[:, None]
    stats = run_bytes(number * rows_of_sequence(p) + first_row, rows, FLOAT32_BYTES)
    written = there * (rows * p.latent_dim * FLOAT32_BYTES + 2 * stats)

    combine = combine_bytes(p, split)
    return Traffic(int(read.sum()) + combine.read_bytes, int(written.sum()) + combine.write_bytes)


def _sizes(problem: MlaProblem, tile: Sizes | None) -> tuple[Tile, int]:
    chosen = tile or tiles(problem)[0]
    return Tile(chosen["Br"], chosen["Bc"]), chosen["split"]


def tiles(problem: MlaProblem) -> list[dict[str, int]]:
    """Return what may be chosen, the default first: rows and keys that fit shared memory, and keys per split."""
    fitting = [
        (Br, Bc)
        for Br, Bc in itertools.product(ROWS, KEYS)
        if problem.page_size % Bc == 0 and shared_bytes(problem, Tile(Br, Bc)) <= MORE_SHARED_BYTES
    ]
    return [{"Br": Br, "Bc": Bc, "split": split} for Br, Bc in fitting for split in SPLITS]


def shared_bytes(problem: MlaProblem, tile: Tile) -> int:
    """Return dynamic shared memory of a block: both parts of Q and of a tile of keys, P, and l and m of every row."""
    parts = (rows_floats(tile.Br + tile.Bc, width) for width in (problem.latent_dim, problem.rope_dim))
    return FLOAT32_BYTES * (sum(parts) + P_floats(tile) + 2 * P_rows(tile))


def unsupported(problem: MlaProblem) -> str | None:
    """Return why it cannot take the problem, or None."""
    p = problem
    if p.latent_dim > LONGEST_LATENT or p.rope_dim > LONGEST_ROPE:
        return f"rows have {p.latent_dim} + {p.rope_dim} elements; more than 512 + 128 do not fit shared memory"
    return _mla.unsupported(p, WIDTH_UNIT, min(SPLITS))


def register(registry: Registry) -> None:
    """Add `mla-split-cupy` and `mla-split-numba`."""
    for language, kernels in (("cupy", cupy_kernels), ("numba", numba_kernels)):
        registry.add(
            Variant(
                name=f"mla-split-{language}",
                operation="mla-decode",
                algorithm="mla-split",
                backend=language,
                idea="latent attention in splits: a row of the cache is loaded once for scores and values of 16 heads",
                plan=functools.partial(plan, kernels),
                supports=unsupported,
                claim=claim,
                tiles=tiles,
                takes=("causal",),
                numerics=NUMERICS,
            )
        )
