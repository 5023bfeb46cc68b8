"""Latent attention, decoding, on Hopper's tensor cores: tiles of keys are factors of both products.

DeepSeek-AI 2024, "DeepSeek-V2", arXiv 2405.04434, section 2.1. With 128 heads, each row of the cache is multiplied so
often that tensor cores, not memory, are the limit. The sizes are those that shared memory and registers leave, as in
FlashMLA (github.com/deepseek-ai/FlashMLA): 64 rows of Q stay on chip, two tiles of 64 keys arrive beside them, and two
warpgroups have half the columns of O each. They take turns with scores: while one is at softmax, the products of the
other are under way.

Bytes, per sequence of L keys, with R = heads q_len rows in T_r = ceil(R / 64) tiles, w = 2 bytes per element, d =
latent_dim elements per value and e = latent_dim + rope_dim per row, if a block has all keys (S = 1) and q_len is 1:

    T_r (64 e w + 64 ceil(L / 64) e w + 12 * 32 + sectors of the table) read, R (d w + 4) written

A box has 64 rows of a page, or 32 or 16 if the page size is no multiple of 64; what lies outside of a tensor arrives as
zeros, and counts. All 12 warps ask for the length, a lane of the first one for each box for its page. With several
splits, parts of O in float32, l and m are written instead, and the second kernel of mla-split puts them together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from harness import Buffer, Launch, MlaProblem, Numerics, Plan, Registry, TensorMap, Traffic, Variant
from variants import _mla
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
from variants._tiles import blocks
from variants._tiles.sectors import SECTOR_BYTES, run_bytes

NUMERICS = Numerics(
    scores="float32", weights="problem", functions="fast", sums="truncated", one_score=True, divides_last=True
)
"""P is rounded to 16 bits, as tensor cores take it; what they add up they cut off. O is divided once."""
ROWS, KEYS = 64, 64
"""Rows of Q per block, and keys that it takes at once."""
COLUMNS, ELEMENT_BYTES = 64, 2
"""Elements of a row in one box."""
WARPS, CONSUMER_WARPS = 12, 4
ALIGNMENT_BYTES = 1024
SPLITS = (512, 1024, 2048, 4096)
"""Keys per block."""
MULTIPROCESSORS = 132
"""Of an H100 or H200: splits are long enough that a block for each of them, or more, are busy."""
LONGEST_LATENT = 512
LOG2_E = 1.4426950408889634
Sizes = Mapping[str, int]


def _kernel(problem: MlaProblem, split: int, whole: bool) -> Any:
    from variants._features import declarations, stored
    from variants._hopper.products import products
    from variants._hopper.rawkernel import FOR_HOPPER, MMA
    from variants._tiles.rawkernel import raw_kernel

    p = problem
    sizes = {
        "HEAD_DIM": p.head_dim, "D": p.head_dim, "LATENT": p.latent_dim, "PAGE": p.page_size, "SPLIT": split,
        "WHOLE": int(whole),
    }  # fmt: skip
    files, using = declarations((causal(p),))
    headers = tuple(("_hopper", f"{part}.cuh") for part in ("hopper", "registers"))
    common = tuple(dict.fromkeys((*stored(p.dtype), *files, *MMA, *headers)))
    options = (*(f"-D{name}={size}" for name, size in sizes.items()), FOR_HOPPER)
    return raw_kernel(
        "mla_decode/mla_mma", "mla_mma", options, common, using + products(KEYS, p.latent_dim // 2, p.dtype, "+f")
    )


def box_rows(problem: MlaProblem) -> int:
    """Return rows of a page that one copy brings."""
    return next(rows for rows in (64, 32, 16) if problem.page_size % rows == 0)


def _map(problem: MlaProblem, name: str, rows: int, extents: tuple[int, int]) -> TensorMap:
    """Return rows of Q or of the cache: `extents` are rows of a sequence and sequences, or of a page and pages."""
    row_bytes = problem.head_dim * ELEMENT_BYTES
    return TensorMap(
        name,
        extents=(problem.head_dim, *extents),
        strides=(row_bytes, extents[0] * row_bytes),
        box=(COLUMNS, rows, 1),
        dtype=problem.dtype,
        swizzle=COLUMNS * ELEMENT_BYTES,
    )


def plan(problem: MlaProblem, tile: Sizes | None = None) -> Plan:
    """One launch, or two with several splits; `tile`: the first of `tiles(problem)` if None."""
    p, split = problem, _split(problem, tile)
    rows, splits = rows_of_sequence(p), most_splits(p, split)
    is_whole = splits <= 1
    maps = (_map(p, "Q", ROWS, (rows, p.sequences)), _map(p, "C", box_rows(p), (p.page_size, p.pool_pages)))
    numbers = (np.int32(p.q_len), np.int32(p.table_shape[1]), np.int32(p.heads), np.float32(p.tau * LOG2_E))
    args = (*maps, "table", "lengths", "O", "lse", *PARTS, *numbers, causal(p).argument)
    grid = (int(blocks(rows, ROWS)), max(1, splits), p.sequences)
    first = Launch(_kernel(p, split, is_whole), grid, (32 * WARPS,), args, shared_bytes(p))
    second = () if is_whole else (combine_launch(combine_kernel(p, split), p, splits),)
    parts = part_buffers(p, splits)
    kept = tuple(replace(part, shape=(1,)) for part in parts) if is_whole else parts
    return Plan(launches=(first, *second), buffers=(*kept, Buffer("lse", p.lse_shape, "float32")))


def shared_bytes(problem: MlaProblem) -> int:
    """Return dynamic shared memory of a block: Q and two tiles of keys."""
    return (ROWS + 2 * KEYS) * problem.head_dim * ELEMENT_BYTES + ALIGNMENT_BYTES


def claim(problem: MlaProblem, tile: Sizes | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, split = problem, _split(problem, tile)
    splits = max(1, most_splits(p, split))
    is_whole, row_bytes = splits == 1, p.head_dim * ELEMENT_BYTES

    # (sequences, splits, tiles of rows): the keys of each block. Boxes bring whole tiles, zeros outside of the tensor.
    first_row, rows, ends = ends_of_tiles(p, ROWS)
    first_key = np.arange(splits, dtype=np.int64)[None, :, None] * split
    keys = np.clip(ends[:, None] - first_key, 0, ends.max(initial=0) if is_whole else split)
    there = keys > 0
    entries = _entry_sectors(p, first_key, keys)
    read = (blocks(keys, KEYS) * KEYS + there * ROWS) * row_bytes + SECTOR_BYTES * (WARPS + entries)
    number = np.arange(p.sequences, dtype=np.int64)[:, None, None] * splits + np.arange(splits)[:, None]
    first_stat = number * rows_of_sequence(p) + first_row
    stats = _stat_bytes(first_stat, rows)
    if is_whole:
        return Traffic(int(read.sum()), int((rows * p.latent_dim * ELEMENT_BYTES + stats).sum()))
    written = there * (rows * p.latent_dim * FLOAT32_BYTES + 2 * stats)
    combine = combine_bytes(p, split)
    return Traffic(int(read.sum()) + combine.read_bytes, int(written.sum()) + combine.write_bytes)


def _entry_sectors(problem: MlaProblem, first_key: Any, keys: Any) -> Any:
    """Return how many sectors of the table a block reads: lanes of a warp ask for the boxes of a tile at once."""
    p, box, per_sector = problem, box_rows(problem), SECTOR_BYTES // 4
    row = np.arange(p.sequences, dtype=np.int64)[:, None, None] * p.table_shape[1]
    sectors = np.zeros_like(keys)
    for start in range(0, int(keys.max(initial=0)), KEYS):
        first = (row + (first_key + start) // p.page_size) // per_sector
        last_key = first_key + np.minimum(start + KEYS, keys) - 1
        last_key = first_key + start + (last_key - first_key - start) // box * box
        last = (row + last_key // p.page_size) // per_sector
        sectors += np.where(keys > start, last - first + 1, 0)
    return sectors


def _stat_bytes(first: Any, rows: Any) -> Any:
    """Return bytes of writing a float per row: a request has 8 rows, from each multiple of 8 of a tile on."""
    total = np.zeros(np.broadcast_shapes(first.shape, rows.shape), np.int64)
    for start in range(0, ROWS, 8):
        total += run_bytes(first + start, np.clip(rows - start, 0, 8), FLOAT32_BYTES)
    return total


def tiles(problem: MlaProblem) -> list[dict[str, int]]:
    """Return the keys that a block may have, the default first: as many as leave no multiprocessor without a block."""
    p = problem
    blocks_of_rows = p.sequences * int(blocks(rows_of_sequence(p), ROWS))
    wanted = max(1, max(p.lengths)) // max(1, -(-MULTIPROCESSORS // blocks_of_rows))
    default = next((split for split in sorted(SPLITS) if split >= wanted), max(SPLITS))
    others = (split for split in SPLITS if split != default)
    return [{"Br": ROWS, "Bc": KEYS, "split": split} for split in (default, *others)]


def _split(problem: MlaProblem, tile: Sizes | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def unsupported(problem: MlaProblem) -> str | None:
    """Return why it cannot take the problem, or None."""
    p = problem
    if p.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    if p.latent_dim % (2 * COLUMNS) or p.latent_dim > LONGEST_LATENT:
        return f"latent_dim is {p.latent_dim}; two warpgroups share 128, 256, 384 or 512 elements"
    if p.rope_dim != COLUMNS:
        return f"rope_dim is {p.rope_dim}; the weights of {KEYS} keys take the place of {COLUMNS} elements"
    return _mla.unsupported(p, COLUMNS, min(SPLITS))


def register(registry: Registry) -> None:
    """Add `mla-mma-cupy`."""
    registry.add(
        Variant(
            name="mla-mma-cupy",
            operation="mla-decode",
            algorithm="mla-mma",
            backend="cupy",
            idea="latent attention on Hopper: wgmma and TMA, two warpgroups share O and take turns with scores",
            plan=plan,
            supports=unsupported,
            claim=claim,
            tiles=tiles,
            takes=("causal",),
            invariant_to=(),  # the rest of the batch decides how keys are split
            numerics=NUMERICS,
        )
    )
