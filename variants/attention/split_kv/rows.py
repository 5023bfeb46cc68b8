"""Which rows and keys sequences have, where they lie in memory, and the bytes of bringing tiles of them on chip."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from harness import Problem
from variants._features import has_varlen
from variants._mma import tile_copy
from variants._mma.splits import BR, key_bytes, strided_key_bytes
from variants._tiles.sectors import LANES, SECTOR_BYTES, Integers
from variants._tiles.tile_copies import LINE_BYTES, PAST_L1_BYTES, TileCopy


@dataclass(frozen=True)
class Sequences:
    """Sequences of one length: the batch, or one of several unpadded ones."""

    q_len: int
    kv_len: int
    group: int
    """Query heads that share a key/value head."""
    rows_before: int
    """Rows of the unpadded sequences before this one; 0 if there are none."""
    keys_before: int
    spans: tuple[Integers, Integers]
    """(S, q_len) each: the first key that each row sees, and the end of its run, of S sequences with other masks."""


def sequences_of(problem: Problem) -> tuple[Sequences, ...]:
    """Return the batch as a whole, or each of the unpadded sequences that has rows."""
    p, varlen = problem, problem.sequences
    if varlen is None:
        return (Sequences(p.q_len, p.kv_len, p.group, 0, 0, p.spans),)
    starts = zip(varlen.q_lengths, varlen.kv_lengths, varlen.q_starts, varlen.kv_starts)

    def spans(q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        first, end = p.mask_within.span(np.arange(q_len), q_len, kv_len)
        return first[None], end[None]

    return tuple(
        Sequences(q_len, kv_len, p.group, rows, keys, spans(q_len, kv_len))
        for q_len, kv_len, rows, keys in starts
        if q_len
    )


def most_keys(problem: Problem) -> int:
    """Return the keys of the longest sequence."""
    return problem.kv_len if problem.sequences is None else max(problem.sequences.kv_lengths)


def is_dense(problem: Problem) -> bool:
    """Whether the rows of a group of heads are one run in memory."""
    return problem.layout.is_dense and not has_varlen(problem)


def _copy(problem: Problem, width: int) -> TileCopy:
    """How tiles of rows of `width` elements are brought on chip."""
    return tile_copy(width, None if is_dense(problem) else problem.row_alignment_bytes // problem.itemsize_bytes)


def first_elements(problem: Problem, of: Sequences, name: str, rows: Integers) -> Integers:
    """Return where rows of Q or O begin; `rows` are counted through heads and batch entries."""
    tensor = problem.tensor(name)
    heads, width = tensor.shape[1], tensor.shape[3]
    if is_dense(problem):
        return rows * width
    entry, in_entry = np.divmod(rows, heads * of.q_len)
    head, row = np.divmod(in_entry, of.q_len)
    of_entry, of_head, of_row, _ = tensor.strides
    first: Integers = tensor.first + entry * of_entry + head * of_head + (of.rows_before + row) * of_row
    return first


def key_bytes_of(
    problem: Problem, of: Sequences, name: str, heads: Integers, first: Integers, end: Integers
) -> Integers:
    """Return bytes of K, or V, from key `first` of key/value heads to before `end`."""
    tensor = problem.tensor(name)
    kv_heads, width = tensor.shape[1], tensor.shape[3]
    if is_dense(problem):
        return key_bytes(width, heads * of.kv_len, first, end)
    entry, head = np.divmod(heads, kv_heads)
    of_entry, of_head, of_row, _ = tensor.strides
    begin = tensor.first + entry * of_entry + head * of_head + of.keys_before * of_row
    copy = replace(_copy(problem, width), row_stride_bytes=of_row * problem.itemsize_bytes)
    return strided_key_bytes(width, begin, of_row, first, end, copy)


def query_bytes(
    problem: Problem, of: Sequences, heads: Integers, first_rows: Integers, tile_rows: Integers
) -> Integers:
    """(S, key/value heads, tiles): bytes of Q of tiles of rows of a group, once each."""
    p, copy = problem, _copy(problem, problem.head_dim)
    first = heads * p.group * of.q_len + first_rows
    if is_dense(p):
        return copy.bytes(first * p.head_dim, tile_rows * p.head_dim)
    # Rows behind the last one are not copied.
    rows = first[..., None] + np.minimum(np.arange(BR), tile_rows[:, None] - 1)
    starts = first_elements(p, of, "Q", rows) * p.itemsize_bytes
    starts -= starts[..., :1] // LINE_BYTES * LINE_BYTES
    count = np.broadcast_to(tile_rows, first.shape)
    cases = np.concatenate([starts, count[..., None]], axis=-1).reshape(-1, BR + 1)
    unlike, of_case = np.unique(cases, axis=0, return_inverse=True)
    sectors = np.array([_sectors(copy, *case) for case in unlike.tolist()], dtype=np.int64)
    return SECTOR_BYTES * sectors[of_case.reshape(-1)].reshape(first.shape)


@lru_cache(maxsize=1 << 14)
def _sectors(copy: TileCopy, *starts_and_rows: int) -> int:
    """Sectors of a tile of rows that begin at any bytes, as `TileCopy` counts them; the last number is that of rows."""
    *starts, rows = starts_and_rows
    lane_bytes = copy.elements_per_lane * copy.itemsize_bytes
    units = copy.row_elements // copy.elements_per_lane
    unit = np.arange(rows * units)
    row, column = np.divmod(unit, units)
    source, request = np.array(starts)[row] + column * lane_bytes, unit // LANES
    if lane_bytes != PAST_L1_BYTES:
        keys = request, source // SECTOR_BYTES
    else:
        target = row * copy.pitch_bytes + (column ^ row % 8) * PAST_L1_BYTES
        keys = request, target // SECTOR_BYTES * (1 << 40) + source // LINE_BYTES
    return int(np.unique(np.stack(keys), axis=1).shape[1])
