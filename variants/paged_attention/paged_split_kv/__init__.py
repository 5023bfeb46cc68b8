"""Flash-Decoding over pages: sequences of very different lengths, split alike, so that no block has more than a split.

Dao, Haziza, Massa and Sizov 2023, "Flash-Decoding for long-context inference", as attention/split_kv has it, over the
pages of Kwon et al. 2023, arXiv 2309.06180. Where each sequence has a block of its own, the longest of a batch keeps
one multiprocessor busy while others wait; where each is divided into as many parts, short ones are divided into
nothing. Here a split is so many keys, whatever its sequence, and splits are counted through all sequences: a sequence
has as many as its length takes, without those before its window, and the grid has one block for each (times heads
and tiles of 16 rows). Which sequence a split belongs to a warp works out from the lengths, 32 at a time. Entries of the
table go to shared memory first, all of a split at once: copies of K and V, asynchronous, do not wait for them one by
one. A second kernel puts the splits of each row together.

Where splits begin depends on nothing but the sequence: its bits do not depend on what else is in the batch, nor on
where its pages lie.

Bytes, per key/value head of a sequence of L keys, the b-th of B, with R = group q_len rows, T_r = ceil(R / 16), and
S = ceil(L / split) splits, where q_len is 1; a split that a tile of rows sees nothing of costs the lengths alone:

    split_kv    S X_q + T_r (K and V of L keys) + S T_r (entries of its pages + lengths) read, 4 S R (d + 2) written
    combine     R (S (4 d + 2 * 32) + 4 (b + 1)) read, X_q + 32 R written

With a window, L counts from the first key that a row sees; splits before the windows of all rows have no block. Slopes
are read by each of a block's 4 warps, those of 8 rows at a time, and a sink by one warp for each row of the second
kernel. The lengths are those of B sequences or of the first 32 ceil((b + 1) / 32), if these are fewer. Splits are put
together as in attention/split_kv. Copies are runs of consecutive elements (see _tiles/sectors.py), those of Q, K and V
with up to 16 bytes per lane. With K and V in 8 bits, their elements have one byte, and each of a block's 4 warps reads
a scale of K and one of V.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness import Buffer, Launch, Numerics, PagedProblem, Plan, Registry, Traffic, Variant
from variants import _features as features
from variants import _paged
from variants._features import arguments
from variants._mma import tile_copy
from variants._mma.splits import (
    BC,
    BR,
    SPLITS,
    THREADS_PER_WARP,
    WARPS,
    combine_block,
    combined_stat_bytes,
    has_few,
    key_bytes,
    shared_bytes,
    slope_sectors,
    split_sizes,
    splits_kernel,
)
from variants._paged import (
    FLOAT32_BYTES,
    INT32_BYTES,
    SPLIT_PAGES,
    WARP_LANES,
    PackedRows,
    row_tiles,
)
from variants._paged.strided_bytes import depends_on_pages, pool_bytes
from variants._tiles import blocks
from variants._tiles.sectors import SECTOR_BYTES, run_bytes

NUMERICS = Numerics(
    scores="float32",
    weights="problem",
    functions="__expf",
    tanh="accurate",
    sums="truncated",
    one_score=True,
    divides_last=True,
)
"""As attention's split-kv: see there."""
MOST_BLOCKS = 2**31 - 1
"""Maximum thread blocks of a grid along x."""


def plan(problem: PagedProblem, tile: Mapping[str, int] | None = None) -> Plan:
    """Two launches, or the second alone where no sequence has a key; `tile`: the first of `tiles(problem)` if None."""
    p, split = problem, _split(problem, tile)
    limits, scores, sink = _paged.limits(p), features.scores(p), features.sink(p)
    sizes = {**split_sizes(p.head_dim, split), "PAGE": p.page_size}
    most_splits, chosen = max(_splits(p, split)), (limits, scores, sink, _paged.window(p), _paged.pool(p))
    files = (*_paged.tiles_of_pool(p), *SPLIT_PAGES)
    split_kv, combine = (
        splits_kernel("paged_attention/paged_split_kv", name, p.dtype, sizes | has_few(count), chosen, files)
        for name, count in (("paged_split_kv", 0), ("paged_split_kv_combine", most_splits))
    )
    splits, sequence_rows = sum(_splits(p, split)), p.heads * p.q_len
    partial, q_len = ("O_split", "l_split", "m_split"), np.int32(p.q_len)
    numbers = (np.int32(p.sequences), q_len, np.int32(p.table_shape[1]), np.int32(p.kv_heads), np.int32(p.group))
    tau, inputs = np.float32(features.factor(p)), ("Q", *_paged.pools(p), "table", "lengths")
    args = (*inputs, *partial, *numbers, tau, *arguments((limits, scores)))
    combine_args = (*partial, "lengths", "O", "lse", q_len, np.int32(sequence_rows), *arguments((limits, sink)))
    grid = (row_tiles(p, BR) * p.kv_heads * splits, 1, 1)
    first = Launch(split_kv, grid, (THREADS_PER_WARP * WARPS,), args, shared_bytes(p.head_dim)) if splits else None
    rows = p.sequences * sequence_rows
    block = combine_block(most_splits, rows)
    second = Launch(combine, (rows // block[1],), block, combine_args, overlaps_previous=first is not None)
    kept = max(1, splits)
    return Plan(
        launches=tuple(launch for launch in (first, second) if launch is not None),
        buffers=(
            Buffer("O_split", (kept, *p.q_shape[1:]), "float32"),
            Buffer("l_split", (kept, *p.lse_shape[1:]), "float32"),
            Buffer("m_split", (kept, *p.lse_shape[1:]), "float32"),
            Buffer("lse", p.lse_shape, "float32"),
        ),
    )


def claim(problem: PagedProblem, tile: Mapping[str, int] | None = None) -> Traffic | None:
    """The bytes above, at the `sectors` level; None in a layout in which they depend on which pages the table names."""
    p, split = problem, _split(problem, tile)
    copy_of_keys = _paged.key_copy(p)
    if depends_on_pages(p, copy_of_keys):
        return None
    d, copy, sequence_rows = p.head_dim, tile_copy(p.head_dim), p.heads * p.q_len
    packed = PackedRows(p, BR)

    # Splits, counted through all sequences: whose each is, which of those of its length, and its first key.
    counts = np.array(_splits(p, split), np.int64)
    sequence = np.repeat(np.arange(p.sequences), counts)
    number = np.arange(len(sequence), dtype=np.int64)
    own_split = number - (np.cumsum(counts) - counts)[sequence] + packed.first_seen(0)[sequence, 0] // split
    first_key = own_split * split

    # (splits, tiles of rows): the run of keys that the block has, and whether it has any; of each key/value head.
    first = np.maximum(packed.firsts[sequence], first_key[:, None])
    end = np.minimum(packed.ends[sequence], first_key[:, None] + split)
    there = first < end
    first_page = first // p.page_size
    entry = sequence[:, None] * p.table_shape[1] + first_page
    entries = np.where(there, (end - 1) // p.page_size - first_page + 1, 0)
    lengths = run_bytes(0, np.minimum(p.sequences, blocks(sequence + 1, WARP_LANES) * WARP_LANES), INT32_BYTES)
    if p.layout.is_dense:
        fetched = 2 * p.kv_heads * key_bytes(d, np.zeros_like(first), first, end, copy_of_keys)
    else:
        fetched = pool_bytes(p, first, end, BC, copy_of_keys)
    per_head = run_bytes(entry, entries, INT32_BYTES) + lengths[:, None]
    kv_heads = np.arange(p.kv_heads, dtype=np.int64)[:, None]
    slopes = features.term_bytes(p, WARPS * (slope_sectors(p, kv_heads, packed.first_rows) * there[:, None]).sum())
    Q = packed.copied_bytes(copy)[sequence] * there[:, None]
    stat = (number * sequence_rows)[:, None, None] + kv_heads * packed.group_rows + packed.first_rows
    rows = packed.rows * there[:, None]
    written = run_bytes(stat * d, rows * d, FLOAT32_BYTES) + 2 * run_bytes(stat, rows, FLOAT32_BYTES)

    # (splits, rows of a sequence): the splits of which a row sees a key.
    row = np.arange(sequence_rows, dtype=np.int64)
    row_first = packed.first_seen(row % p.q_len)[sequence]
    row_end = packed.end_seen(row % p.q_len)[sequence]
    seen = np.maximum(row_first, first_key[:, None]) < np.minimum(row_end, first_key[:, None] + split)
    of_split = run_bytes(((number * sequence_rows)[:, None] + row) * d, seen * d, FLOAT32_BYTES)
    of_row = own_split[:, None] - row_first // split
    stats = combined_stat_bytes(of_row, (number * sequence_rows)[:, None] + row, sequence_rows)
    combine = (of_split + seen * stats).sum()
    combine += sequence_rows * run_bytes(0, np.arange(p.sequences) + 1, INT32_BYTES).sum()
    combine += features.sink_bytes(p, p.sequences * sequence_rows)

    all_rows = np.arange(p.sequences * sequence_rows, dtype=np.int64)
    output_bytes = run_bytes(all_rows * d, d, p.itemsize_bytes).sum() + len(all_rows) * SECTOR_BYTES
    combine += _paged.scale_bytes(p, WARPS * p.kv_heads * int(there.sum()))

    return Traffic(
        int(fetched.sum() + p.kv_heads * per_head.sum() + Q.sum() + slopes + combine), int(written.sum() + output_bytes)
    )


def tiles(problem: PagedProblem) -> list[dict[str, int]]:
    """How many keys a split may have, the default first. Br is no choice: it says where tiles of rows end."""
    return [{"Br": BR, "split": split} for split in SPLITS]


def _split(problem: PagedProblem, tile: Mapping[str, int] | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def _splits(problem: PagedProblem, split: int) -> list[int]:
    """How many splits each sequence has: those before its window are left out."""
    return [int(blocks(length, split)) - problem.first_seen(length) // split for length in problem.lengths]


def supports(problem: PagedProblem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    rows = problem.sequences * problem.heads * problem.q_len
    most = max(rows, row_tiles(problem, BR) * problem.kv_heads * sum(_splits(problem, min(SPLITS))))
    if most > MOST_BLOCKS:
        return f"it takes {most:,} blocks; a grid has at most 2^31 - 1 along x"
    return _paged.unsupported(problem)


def register(registry: Registry) -> None:
    """Add `paged-split-kv-cupy`."""
    registry.add(
        Variant(
            name="paged-split-kv-cupy",
            operation="paged-attention",
            algorithm="paged-split-kv",
            backend="cupy",
            idea="Flash-Decoding over pages: sequences in splits of one size, grouped heads share them, tensor cores",
            plan=plan,
            supports=supports,
            claim=claim,
            tiles=tiles,
            takes=(*features.BAND_FEATURES, *features.SCORE_FEATURES, _paged.KV_DTYPE_FEATURE, features.LAYOUT_FEATURE),
            numerics=NUMERICS,
        )
    )
