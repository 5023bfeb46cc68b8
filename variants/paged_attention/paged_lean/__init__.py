"""Lean Attention over pages: each block takes equally many keys, wherever sequences and heads end.

Sanovar, Bharadwaj, St. Amant, Rühle and Rajmohan 2024, "Lean Attention: Hardware-aware scalable attention mechanism for
the decode-phase of transformers", arXiv 2405.10480, algorithm 2, as attention/lean has it, over the pages of Kwon et
al. 2023, arXiv 2309.06180. Splits of one size make as many blocks as the lengths give, and the last ones leave most of
a GPU idle. Here as many blocks as the GPU holds at once share the keys of all sequences equally, and the last block to
finish a part of a sequence and head combines the parts, in the same launch.

Lean tiles are 64 keys. They lie in a row, through sequences, key/value heads and tiles of 16 rows, with empty places
before those of each tile of rows, as in attention/lean; a tile of rows that sees no key has one. A block finds the
sequence of its first place from the lengths, 32 at a time, and goes on from there. Each warp reads entries of the table
for its next 32 tiles of 16 keys at once.

Bytes, at the `sectors` level, with R = group q_len rows per key/value head and d elements of w = 2 bytes per row. A
*segment* is what a block has of a tile of rows.

1. Each segment reads its rows of Q, the lengths up to its sequence from those that the block has read last, and the
   entries of its pages. K and V are read once per tile of rows.
2. A segment that is not all keys of a tile of rows writes O, l and m in float32, and they are read once. Its counter is
   read and written, a sector each.
3. O and L are written once.

With a window, the lean tiles of a tile of rows begin with that of the first key that one of its rows sees. Each segment
also reads slopes, once per warp, those of 8 rows at a time, and sinks, those of its rows at once. With K and V in 8
bits, w = 1 for these, and each warp of a segment reads a scale of K and one of V.

Bits depend neither on the order of blocks nor on where pages lie, but on the rest of the batch, which moves the cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from harness import Buffer, Launch, Numerics, PagedProblem, Plan, Registry, Traffic, Variant
from variants import _features as features
from variants import _paged
from variants._features import arguments
from variants._mma import tile_copy
from variants._mma.equal_runs import (
    FEWEST_LEAN_TILES,
    LEAN_TILE,
    PART_BUFFERS,
    Segments,
    blocks_for,
    part_buffers,
    places_of,
    shared_bytes,
    sizes_for,
    too_many,
)
from variants._mma.splits import (
    BC,
    BR,
    EQUAL_RUNS,
    THREADS_PER_WARP,
    WARPS,
    head_sectors,
    key_bytes,
    slope_sectors,
    slots,
    splits_kernel,
)
from variants._paged import INT32_BYTES, SEQUENCES, WARP_LANES, PackedRows, row_tiles
from variants._paged.strided_bytes import depends_on_pages, pool_bytes
from variants._tiles import blocks
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes

NUMERICS = Numerics(
    scores="float32",
    weights="problem",
    functions="__expf",
    tanh="accurate",
    sums="truncated",
    one_score=True,
    divides_last=True,
)
"""As attention's lean: see there."""
SPLITS = tuple(LEAN_TILE * fewest for fewest in (FEWEST_LEAN_TILES, 2, 4, 16, 32, 64))
"""Fewest keys of a block, the default first."""
MOST_PLACES = 2**31 - 1
"""They are counted in 32 bits."""


def lean_tiles(problem: PagedProblem) -> Integers:
    """(sequences, tiles of rows): lean tiles of each tile of rows of a key/value head, at least one."""
    packed = PackedRows(problem, BR)
    tiles: Integers = np.maximum(1, blocks(packed.ends, LEAN_TILE) - packed.firsts // LEAN_TILE)
    return tiles


def cupy_paged_lean(problem: PagedProblem) -> Any:
    """The CUDA kernel."""
    p = problem
    chosen = _paged.limits(p), features.scores(p), features.sink(p), _paged.window(p), _paged.pool(p)
    sizes = sizes_for(p.head_dim, _output_tiles(p)) | {"PAGE": p.page_size}
    files = (*_paged.tiles_of_pool(p), *EQUAL_RUNS, *SEQUENCES)
    return splits_kernel("paged_attention/paged_lean", "paged_lean", p.dtype, sizes, chosen, files)


def numba_paged_lean(problem: PagedProblem) -> Any:
    """The Numba kernel."""
    from variants.paged_attention.paged_lean.numba_kernel import paged_lean_kernel

    p, sizes = problem, sizes_for(problem.head_dim, _output_tiles(problem))
    return paged_lean_kernel(
        p.head_dim, slots(p.head_dim), p.dtype, sizes["BLOCKS_PER_SM"], sizes["OUTPUT_TILES"], p.page_size,
        _paged.in_numba(p, BR, BC), p.window is not None, p.kv_dtype, _paged.rows_aligned_to(p),
    )  # fmt: skip


KERNELS = {"cupy": cupy_paged_lean, "numba": numba_paged_lean}


def plan(
    problem: PagedProblem,
    tile: Mapping[str, int] | None = None,
    kernel: Callable[[PagedProblem], Any] = cupy_paged_lean,
) -> Plan:
    """One launch; `tile`: the first of `tiles(problem)` if None."""
    p, places = problem, _places(problem)
    numbers = (p.sequences, p.q_len, p.table_shape[1], p.kv_heads, p.group)
    arrays = ("Q", *_paged.pools(p), "table", "lengths", "O", "lse", *PART_BUFFERS)
    args = (*arrays, *map(np.int32, numbers), np.uint32(places))
    grid, rules = blocks_for(_of_all(p), _fewest(p, tile)), (_paged.limits(p), features.scores(p), features.sink(p))
    launch = Launch(
        kernel(p),
        (grid,),
        (THREADS_PER_WARP * WARPS,),
        (*args, np.float32(features.factor(p)), *arguments(rules)),
        shared_bytes(p.head_dim),
    )
    return Plan(launches=(launch,), buffers=(Buffer("lse", p.lse_shape, "float32"), *part_buffers(grid, p.head_dim)))


def claim(problem: PagedProblem, tile: Mapping[str, int] | None = None) -> Traffic | None:
    """The bytes above, at the `sectors` level; None in a layout in which they depend on which pages the table names."""
    copy_of_keys = _paged.key_copy(problem)
    if depends_on_pages(problem, copy_of_keys):
        return None
    p, d, copy, packed = problem, problem.head_dim, tile_copy(problem.head_dim), PackedRows(problem, BR)
    tiles = len(packed.rows)
    segments = Segments.of(_of_all(p), _fewest(p, tile))
    head, number = np.divmod(segments.output_tile, tiles)
    sequence, rows = head // p.kv_heads, packed.rows[number]
    first = head * packed.group_rows + packed.first_rows[number]

    first_seen = packed.firsts[sequence, number]
    begin = (first_seen // LEAN_TILE + segments.behind) * LEAN_TILE
    end_key = np.minimum(begin + segments.lean_tiles * LEAN_TILE, packed.ends[sequence, number])
    first_key = np.maximum(begin, first_seen)
    if p.layout.is_dense:
        fetched = 2 * key_bytes(d, np.zeros_like(first), first_key, end_key, copy_of_keys)
    else:
        of_heads = pool_bytes(p, first_key, np.maximum(first_key, end_key), BC, copy_of_keys)
        fetched = np.take_along_axis(of_heads, (head % p.kv_heads)[None], axis=0)
    read = copy.bytes(first * d, rows * d).sum() + fetched.sum()
    read += _paged.scale_bytes(p, WARPS * len(first))
    read += _entry_bytes(p, sequence, begin, first_key, end_key) + _length_bytes(p, segments.block, sequence)
    own_head, first_row = head % p.kv_heads, packed.first_rows[number]
    read += features.term_bytes(p, WARPS * slope_sectors(p, own_head, first_row).sum())
    read += features.sink_bytes(p, head_sectors(p, own_head, first_row, first_row + rows - 1).sum())
    part_bytes = segments.part_bytes(rows, d)
    return Traffic(int(read) + part_bytes, part_bytes + segments.output_bytes(first, rows, d, p.itemsize_bytes))


def _entry_bytes(
    problem: PagedProblem, sequence: Integers, begin: Integers, first_key: Integers, end_key: Integers
) -> int:
    """Bytes of the table: a warp reads the entries of its next 32 tiles of 16 keys at once.

    Lean tiles begin with key `begin`, and what a row sees with `first_key`.
    """
    lanes, per_sector = np.arange(WARP_LANES, dtype=np.int64) * LEAN_TILE, SECTOR_BYTES // INT32_BYTES
    row = sequence * problem.table_shape[1]
    sectors = 0
    for warp in range(WARPS):
        first = begin + warp * BC
        first = np.where(first + BC <= first_key, first + LEAN_TILE, first)
        reads = np.maximum(0, blocks(end_key - first, WARP_LANES * LEAN_TILE))
        for read in range(int(reads.max(initial=0))):
            there = np.flatnonzero(read < reads)
            keys = first[there, None] + read * WARP_LANES * LEAN_TILE + lanes
            entries = row[there, None] + keys // problem.page_size
            places = np.where(keys < end_key[there, None], entries, -1) // per_sector
            sectors += int(((np.diff(places, axis=1, prepend=-1) != 0) & (places >= 0)).sum())
    return SECTOR_BYTES * sectors


def _length_bytes(problem: PagedProblem, block: Integers, sequence: Integers) -> int:
    """Bytes of the lengths: from the 32 in which a block found its last sequence to those of the segment's sequence."""
    of_32 = sequence // WARP_LANES
    is_first = np.diff(block, prepend=-1) != 0
    begin = np.where(is_first, 0, np.concatenate(([0], of_32[:-1])))
    groups = np.arange(blocks(problem.sequences, WARP_LANES), dtype=np.int64)
    lengths = np.minimum(WARP_LANES, problem.sequences - groups * WARP_LANES)
    up_to = np.concatenate(([0], np.cumsum(run_bytes(groups * WARP_LANES, lengths, INT32_BYTES))))
    return int((up_to[of_32 + 1] - up_to[begin]).sum())


def tiles(problem: PagedProblem) -> list[dict[str, int]]:
    """The fewest keys that a block may take, the default first. Br is no choice: it says where tiles of rows end."""
    return [{"Br": BR, "split": keys} for keys in SPLITS]


def _fewest(problem: PagedProblem, tile: Mapping[str, int] | None) -> int:
    """Fewest lean tiles of a block."""
    return (tile or tiles(problem)[0])["split"] // LEAN_TILE


def _of_all(problem: PagedProblem) -> Integers:
    """Lean tiles of each tile of rows of all key/value heads."""
    tiles: Integers = np.repeat(lean_tiles(problem)[:, None], problem.kv_heads, axis=1).reshape(-1)
    return tiles


def _places(problem: PagedProblem) -> int:
    return int(places_of(lean_tiles(problem)).sum()) * problem.kv_heads


def _output_tiles(problem: PagedProblem) -> int:
    return problem.sequences * problem.kv_heads * row_tiles(problem, BR)


def supports(problem: PagedProblem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    reason = _paged.unsupported(problem) or too_many(_output_tiles(problem))
    if reason is None and _places(problem) > MOST_PLACES:
        return f"it has {int(_of_all(problem).sum()):,} tiles of {LEAN_TILE} keys; about 2^31 is the most"
    return reason


def register(registry: Registry) -> None:
    """Add `paged-lean-cupy` and `paged-lean-numba`."""
    for language, kernel in KERNELS.items():
        registry.add(
            Variant(
                name=f"paged-lean-{language}",
                operation="paged-attention",
                algorithm="paged-lean",
                backend=language,
                idea="Lean Attention over pages: each block takes equally many keys of all sequences; the last one "
                "combines the results",
                plan=partial(plan, kernel=kernel),
                supports=supports,
                claim=claim,
                tiles=tiles,
                takes=(
                    *features.BAND_FEATURES,
                    *features.SCORE_FEATURES,
                    _paged.KV_DTYPE_FEATURE,
                    features.LAYOUT_FEATURE,
                ),
                invariant_to=(),  # the rest of the batch moves the cuts between blocks
                numerics=NUMERICS,
            )
        )
