"""Which rows see the keys of a block, and which tiles of rows it visits. The CUDA twins, seen.cuh and turns.cuh, have
the same names."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from variants._features.numba_limits import BandRun
from variants._mma.numba_mma import load_shared, store_shared
from variants._mma_backward.numba_limits import end_in_band, first_in_band, own_key
from variants._mma_backward.numba_limits import end_in_spans as end_row
from variants._mma_backward.numba_limits import first_in_spans as first_row

NOTHING, WORD = uint32(0), uint32(4)
load_word, store_word = load_shared(4), store_shared(4)


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


# --- Visits -----------------------------------------------------------------------------------------------------------


class Turn(NamedTuple):
    """One turn of a block's loop: it scores a tile of rows of one of the query heads that share the block's keys.

    What one turn scores is summed LAG turns later.
    """

    number: Any
    head: Any
    first_row: Any


@functools.cache
def run_of_turns(rows: int, lag: int) -> SimpleNamespace:
    """All tiles of `rows` rows with one that sees a key of the block, of all heads that share the keys.

    `numbers`: where in shared memory three of them are noted, read anew each time: sums want the registers.
    """
    BR, LAG = rows, lag

    # With those in which it only sums.
    @cuda.jit(device=True, forceinline=True)
    def count(numbers):
        return int32(load_word(numbers))

    @cuda.jit(device=True, forceinline=True)
    def first_row(numbers):
        return int32(load_word(uint32(numbers + WORD)))

    @cuda.jit(device=True, forceinline=True)
    def end_row(numbers):
        return int32(load_word(uint32(numbers + WORD + WORD)))

    # By one thread. Rows first to end - 1 see the block's keys.
    @cuda.jit(device=True, forceinline=True)
    def note(numbers, first, end, heads, order, q_len):
        tile = int32(uint32(first) // uint32(BR))
        tiles = int32(int32(uint32(end + BR - 1) // uint32(BR)) - tile) if first < end else int32(0)
        store_word(numbers, uint32(int32(heads * tiles) + LAG) if tiles > 0 else NOTHING)
        store_word(uint32(numbers + WORD), uint32(tile * BR))
        store_word(uint32(numbers + WORD + WORD), uint32(int32(tile + tiles) * BR))

    @cuda.jit(device=True, forceinline=True)
    def scores(numbers, turn):
        return turn.number < int32(count(numbers) - LAG)

    @cuda.jit(device=True, forceinline=True)
    def after(numbers, turn):
        is_last = int32(turn.first_row + BR) == end_row(numbers)
        row = first_row(numbers) if is_last else int32(turn.first_row + BR)
        return Turn(int32(turn.number + 1), int32(turn.head + is_last), row)

    @cuda.jit(device=True, forceinline=True)
    def before(numbers, turn):
        is_first = turn.first_row == first_row(numbers)
        row = int32((end_row(numbers) if is_first else turn.first_row) - BR)
        return Turn(int32(turn.number - 1), int32(turn.head - is_first), row)

    # Limits alone hide pairs.
    @cuda.jit(device=True, forceinline=True)
    def room():
        return ()

    @cuda.jit(device=True, forceinline=True)
    def pairs(numbers, bits, turn):
        return ()

    @cuda.jit(device=True, forceinline=True)
    def hides_some(hidden):
        return False

    @cuda.jit(device=True, forceinline=True)
    def compute(hidden, bits, numbers, turn, block, order):
        pass

    @cuda.jit(device=True, forceinline=True)
    def copy_entry(numbers, turn, order, q_len):
        pass

    return SimpleNamespace(
        NUMBERS=3,
        count=count,
        first_row=first_row,
        note=note,
        scores=scores,
        after=after,
        before=before,
        room=room,
        pairs=pairs,
        hides_some=hides_some,
        compute=compute,
        copy_entry=copy_entry,
    )
