"""Flash-Decoding: splits, plan and claim. README.md explains the algorithm and derives its bytes.

What the claim adds to the formula there, per key/value head with g query heads, whose rows are counted through: R = g
N_q rows in T_r = ceil(R / 16) tiles.

The second kernel puts a row's splits together, each of its warps 16 at once; l_s, m_s and L cost fewer sectors where
there are less than 8 rows in all. A mask that is no band adds, per block of the first, two requests for the first keys
and the ends that its 16 rows see, and two sectors per warp of each row of the second. Under a mask a tile of rows meets
the keys from the first to the last that any of its rows sees; where it has the last queries of one head and the first
of the next, and these see nothing in common, the tiles of 16 keys in between are left out. A row meets the splits of
which it sees a key. All copies are runs of consecutive elements (see _tiles/sectors.py), those of Q, K and V with up to
16 bytes per lane. Slopes are read by each of a block's 4 warps, those of 8 rows at a time, and a sink by one warp for
each row of the second kernel: 32 bytes each, or 64 where 8 rows are of heads whose slopes lie in two sectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import Buffer, Launch, Numerics, Plan, Problem, Registry, Traffic, Variant
from variants import _features as features
from variants._features import Feature, arguments, has_spans, has_varlen, sequence_extents, sink_bytes, start_bytes
from variants._mma.splits import (
    BC,
    BR,
    SPLITS,
    THREADS_PER_WARP,
    WARPS,
    combine_block,
    combined_stat_bytes,
    has_few,
    shared_bytes,
    slope_sectors,
    split_sizes,
    splits_kernel,
    tiles,
)
from variants._tiles import blocks, unsupported
from variants._tiles.grids import beyond_y
from variants._tiles.schedule import FLOAT32_BYTES, INT32_BYTES
from variants._tiles.sectors import SECTOR_BYTES, Integers, run_bytes
from variants.attention.split_kv.rows import (
    Sequences,
    first_elements,
    key_bytes_of,
    most_keys,
    query_bytes,
    sequences_of,
)

FOLDER = "attention/split_kv"
Run = tuple[Integers, Integers]
"""Keys from the first to before the second."""
NUMERICS = Numerics(
    scores="float32",
    weights="problem",
    functions="__expf",
    tanh="accurate",
    sums="truncated",
    one_score=True,
    divides_last=True,
)
"""A weight shrinks when its warp's maximum rises, when the warps of a block are put together, and twice more with the
splits: each time by the distance to a larger score of another key, so at most once per key, as budgets assume."""


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """The kernels' features, in the order of their parameters: the first has no sink, the second no scores."""
    p, of_sequences, of_layout = problem, features.sequences(problem), features.layout(problem)
    if has_varlen(p):
        # Rows of a sequence's heads are never one run, so strides place them even in a dense layout.
        longest = np.int32(sequence_extents(p)[1])
        of_sequences = replace(of_sequences, cuda_type="SplitVarlen", argument=(*of_sequences.argument, longest))
        of_layout = features.strided_layout(p)
    else:
        of_sequences = replace(of_sequences, cuda_type="SplitOneLength")
    of_sequences = replace(of_sequences, files=(*of_sequences.files, (FOLDER, "sequences.cuh")))
    return features.limits(p), features.scores(p), features.sink(p), of_sequences, of_layout


def cupy_kernels(problem: Problem, split: int, chosen: tuple[Feature, ...]) -> tuple[Any, Any]:
    """The CUDA kernels for splits of so many keys."""
    p, sizes = problem, split_sizes(problem.head_dim, split, problem.v_width)
    counts = {"split_kv": 0, "split_kv_combine": _most_splits(p, split)}
    split_kv, combine = (
        splits_kernel(FOLDER, name, p.dtype, sizes | has_few(count), chosen, ((FOLDER, "rows.cuh"),))
        for name, count in counts.items()
    )
    return split_kv, combine


TAKES = (
    *features.SPAN_FEATURES,
    *features.SCORE_FEATURES,
    features.LAYOUT_FEATURE,
    features.VARLEN_FEATURE,
    features.V_WIDTH_FEATURE,
)


def plan(problem: Problem, tile: Mapping[str, int] | None = None) -> Plan:
    """Two launches; `tile` is the first of `tiles(problem)` unless given."""
    p, split = problem, _split(problem, tile)
    limits, scores, sink, *of_rows = chosen = features_of(p)
    sequences, longest = sequence_extents(p)
    row_tiles, splits = blocks(p.group * longest, BR), _most_splits(p, split)
    split_kv, combine = cupy_kernels(p, split, chosen)
    combine_threads, combine_rows = combine_block(splits, _rows(p))
    grid = (row_tiles * p.kv_heads_count, splits, sequences)
    partial = ("O_split", "l_split", "m_split")
    lengths, group, tau = (np.int32(p.q_len), np.int32(p.kv_len)), np.int32(p.group), np.float32(features.factor(p))
    args = ("Q", "K", "V", *partial, *lengths, group, tau, *arguments((limits, scores, *of_rows)))
    # First keys and ends are those of a sequence, and sinks of a head.
    combine_args = (*partial, "O", "lse", *lengths, np.int32(p.heads), *arguments((limits, sink, *of_rows)))
    return Plan(
        launches=(
            Launch(split_kv, grid, (THREADS_PER_WARP * WARPS,), args, shared_bytes(max(p.head_dim, p.v_width))),
            Launch(combine, _combine_grid(p, combine_rows), (combine_threads, combine_rows), combine_args),
        ),
        buffers=(
            Buffer("O_split", (splits, *p.o_shape), "float32"),
            Buffer("l_split", (splits, *p.lse_shape), "float32"),
            Buffer("m_split", (splits, *p.lse_shape), "float32"),
            Buffer("lse", p.lse_shape, "float32"),
        ),
    )


def claim(problem: Problem, tile: Mapping[str, int] | None = None) -> Traffic:
    """The bytes above, at the `sectors` level."""
    p, split = problem, _split(problem, tile)
    sequences, longest = sequence_extents(p)
    alike, most_splits = sequences_of(p), _most_splits(p, split)
    combine_threads, combine_rows = combine_block(most_splits, _rows(p))
    combine_warps = combine_threads // THREADS_PER_WARP
    parts = [_claim_of(p, split, combine_warps, each) for each in alike]
    read_bytes, written_bytes = (sum(each) for each in zip(*parts))

    # Where sequences begin, in the first kernel by blocks, in the second by rows.
    splits = p.kv_heads_count * most_splits
    tiles_with_rows = sum(int(blocks(p.group * each.q_len, BR)) for each in alike)
    row_slots = sequences * combine_rows * int(blocks(p.heads * longest, combine_rows))
    read_bytes += start_bytes(
        p, WARPS, splits * sequences * int(blocks(p.group * longest, BR)), splits * tiles_with_rows
    ) + start_bytes(p, combine_warps, row_slots, _rows(p))
    return Traffic(int(read_bytes), int(written_bytes))


def _claim_of(problem: Problem, split: int, combine_warps: int, of: Sequences) -> tuple[int, int]:
    """Bytes read and written for sequences of one length, without where they begin."""
    p, dv = problem, problem.v_width

    # (sequences that the mask tells apart, key/value heads, tiles of rows): each tile's first row, and the two runs of
    # keys that some row of it sees.
    group_rows = p.group * of.q_len
    first_rows = np.arange(0, group_rows, BR, dtype=np.int64)
    tile_rows = np.minimum(BR, group_rows - first_rows)
    low, high = _keys_seen(of, first_rows % of.q_len, tile_rows)
    heads = np.arange(p.batch * p.kv_heads_count, dtype=np.int64).reshape(len(of.spans[0]), -1, 1)
    first = of.rows_before * p.heads + heads * group_rows + first_rows
    Q_bytes = query_bytes(p, of, heads, first_rows, tile_rows)
    slopes = slope_sectors(of, heads % p.kv_heads_count, first_rows)

    def split_kv_bytes(index: int) -> tuple[Integers, Integers]:
        """Q read and O, l and m written by the blocks of one split."""
        there = _meets(low, index, split) | _meets(high, index, split)
        stat = index * _rows(p) + first
        O, l = (run_bytes(stat * n, there * tile_rows * n, FLOAT32_BYTES) for n in (dv, 1))
        of_terms = features.term_bytes(p, WARPS * (there * slopes).sum())
        return (there * Q_bytes).sum() + of_terms, (O + 2 * l).sum()

    # Splits are whole tiles of 16 keys, and each of those is copied by itself.
    kv_bytes = sum(key_bytes_of(p, of, name, heads, *run).sum() for run in (low, high) for name in "KV")
    splits = range(blocks(of.kv_len, split))
    split_kv = np.sum([(0, 0), *(split_kv_bytes(index) for index in splits)], axis=0, dtype=np.int64)

    shape = (p.batch, p.heads, of.q_len)
    rows = np.arange(np.prod(shape), dtype=np.int64)
    stats = of.rows_before * p.heads + rows
    seen_first, seen_end = (np.broadcast_to(each[:, None], shape).reshape(-1) for each in of.spans)

    def combine_bytes(index: int) -> Integers:
        """O, l and m of one split, read for all rows."""
        there = _meets((seen_first, seen_end), index, split)
        stat_bytes = combined_stat_bytes(index - seen_first // split, index * _rows(p) + stats, _rows(p))
        return (run_bytes((index * _rows(p) + stats) * dv, there * dv, FLOAT32_BYTES) + there * stat_bytes).sum()

    combine = np.sum([0, *(combine_bytes(index) for index in splits)], dtype=np.int64)
    output_bytes = run_bytes(first_elements(p, of, "O", rows), dv, p.itemsize_bytes).sum() + len(rows) * SECTOR_BYTES
    read_bytes = kv_bytes + split_kv[0] + combine + sink_bytes(p, len(rows))
    if has_spans(p):
        read_bytes += (
            len(splits) * _limit_bytes(p, first_rows, tile_rows) + 2 * SECTOR_BYTES * len(rows) * combine_warps
        )
    return int(read_bytes), int(split_kv[1] + output_bytes)


def _keys_seen(of: Sequences, first_queries: Integers, tile_rows: Integers) -> tuple[Run, Run]:
    """Two runs of keys that tiles of so many rows meet, of which the first is that query of its head: low and high.

    Each is (sequences that the mask tells apart, 1, tiles).

    Where the rows of two heads meet in a tile, the first queries of one see the low run, the last of the other the high
    one. Each ends with whole tiles of keys where there are keys in between; else the low one is all.
    """
    last = first_queries + tile_rows - 1
    meet = last >= of.q_len
    firsts, ends = of.spans
    low_first = firsts[:, None, np.where(meet, 0, first_queries)]
    low_end = ends[:, None, np.where(meet, np.minimum(last - of.q_len, of.q_len - 1), last)]
    high_first = firsts[:, None, first_queries]
    high_end = ends[:, None, np.minimum(last, of.q_len - 1)]
    low_tiles_end, first_high_tile = blocks(low_end, BC) * BC, high_first // BC * BC
    apart = (low_end > 0) & (low_tiles_end < first_high_tile)
    low = np.where(low_end > 0, low_first, high_first), np.where(apart, low_tiles_end, high_end)
    high = first_high_tile, np.where(apart, high_end, 0)
    return low, high


def _limit_bytes(problem: Problem, first_rows: Integers, tile_rows: Integers) -> int:
    """Bytes of reading the first keys and ends of the rows of every tile once, where the mask is no band.

    One request each; a query that several heads have is in it several times, and costs what it costs once.
    """
    p, sequences = problem, np.arange(problem.batch)[:, None, None]
    lanes = np.arange(BR)
    elements = sequences * p.q_len + (first_rows[:, None] + lanes) % p.q_len
    sectors = np.where(lanes < tile_rows[:, None], elements * INT32_BYTES // SECTOR_BYTES, -1)
    distinct = np.diff(np.sort(sectors, axis=-1), axis=-1, prepend=-1) > 0
    return 2 * p.kv_heads_count * SECTOR_BYTES * int(distinct.sum())


def _meets(run: Run, index: int, split: int) -> npt.NDArray[np.bool_]:
    """Whether a key of the run is in this split."""
    first, end = run
    return np.maximum(first, index * split) < np.minimum(end, (index + 1) * split)


def _split(problem: Problem, tile: Mapping[str, int] | None) -> int:
    return (tile or tiles(problem)[0])["split"]


def _rows(problem: Problem) -> int:
    """Rows of all heads and sequences."""
    return problem.batch * problem.heads * problem.q_len


def _combine_grid(problem: Problem, combine_rows: int) -> tuple[int, ...]:
    """Blocks of so many rows: of the whole batch, or of the longest sequence for each of several unpadded ones."""
    if not has_varlen(problem):
        return (_rows(problem) // combine_rows,)
    sequences, longest = sequence_extents(problem)
    return int(blocks(problem.heads * longest, combine_rows)), 1, sequences


def _most_splits(problem: Problem, split: int) -> int:
    """Splits of the sequence that has the most keys, at least one."""
    return max(1, int(blocks(most_keys(problem), split)))


def supports(problem: Problem) -> str | None:
    """Why it cannot take the problem, or None."""
    if problem.dtype == "float32":
        return "dtype is float32; tensor cores multiply 16-bit elements: choose float16 or bfloat16"
    if problem.v_head_dim is not None and problem.head_dim % 16:
        return (
            f"head_dim is {problem.head_dim} and v_head_dim {problem.v_head_dim}; where they differ, "
            "head_dim has to be a multiple of 16"
        )
    return unsupported(problem) or beyond_y(kv_len=(most_keys(problem), min(SPLITS)))


def register(registry: Registry) -> None:
    """Add `split-kv-cupy`."""
    registry.add(
        Variant(
            name="split-kv-cupy",
            algorithm="split-kv",
            backend="cupy",
            idea="Flash-Decoding, for few query rows: keys split over blocks, grouped heads share them, tensor cores",
            plan=plan,
            supports=supports,
            claim=claim,
            tiles=tiles,
            takes=TAKES,
            numerics=NUMERICS,
        )
    )
