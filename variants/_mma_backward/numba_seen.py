"""Which rows see the keys of a block. The CUDA twin, seen.cuh, has the same names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32

from variants._features.numba_limits import BandRun
from variants._mma_backward.numba_limits import end_in_band, first_in_band, own_key
from variants._mma_backward.numba_limits import end_in_spans as end_row
from variants._mma_backward.numba_limits import first_in_spans as first_row


class Pairs(NamedTuple):
    """Rows of queries from `row` to `last_row`, and `keys` keys from `key` on, some of which may lie beyond the last
    key."""

    row: Any
    last_row: Any
    key: Any
    keys: Any


# --- A band -----------------------------------------------------------------------------------------------------------


# As rows see keys: mirrored once more.
@cuda.jit(device=True, forceinline=True)
def keys_of_row(seeing):
    return BandRun(seeing.after, seeing.before, seeing.kv_len, seeing.q_len)


# Whether each row sees each key.
@cuda.jit(device=True, forceinline=True)
def all_see_band(seeing, of):
    seen = keys_of_row(seeing)
    return of.key >= first_in_band(seen, of.last_row) and int32(of.key + of.keys) <= end_in_band(seen, of.row)


# Whether any row may see a key.
@cuda.jit(device=True, forceinline=True)
def some_see_band(seeing, of):
    seen = keys_of_row(seeing)
    return of.key < end_in_band(seen, of.last_row) and int32(of.key + of.keys) > first_in_band(seen, of.row)


# The first row that sees key `key` + `further`, and the end of those that do, counted from `row`: none see what lies
# beyond the last key.
@cuda.jit(device=True, forceinline=True)
def rows_seeing_in_band(seeing, further, key, row):
    seen = keys_of_row(seeing)
    own = int32(further - int32(own_key(seen, row) - key))  # the row on which the key lies
    rows = int32(min(int32(own + seen.before + 1), int32(seen.q_len - row)))
    return int32(own - seen.after), rows if further < int32(seen.kv_len - key) else int32(0)


# --- Runs in memory ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True, forceinline=True)
def all_see_spans(seeing, of):
    last_key = int32(of.key + of.keys - 1)
    return first_row(seeing, last_key) <= of.row and of.last_row < end_row(seeing, of.key)


@cuda.jit(device=True, forceinline=True)
def some_see_spans(seeing, of):
    last_key = int32(of.key + of.keys - 1)
    return first_row(seeing, of.key) <= of.last_row and of.row < end_row(seeing, last_key)


@cuda.jit(device=True, forceinline=True)
def rows_seeing_in_spans(seeing, further, key, row):
    at = int32(key + further)
    return int32(first_row(seeing, at) - row), int32(end_row(seeing, at) - row)


def numba_seen(spans: bool) -> SimpleNamespace:
    """`all_see`, `some_see` and `rows_seeing` of `Spans` or `Band`."""
    if spans:
        return SimpleNamespace(all_see=all_see_spans, some_see=some_see_spans, rows_seeing=rows_seeing_in_spans)
    return SimpleNamespace(all_see=all_see_band, some_see=some_see_band, rows_seeing=rows_seeing_in_band)
