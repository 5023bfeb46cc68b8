"""Which rows see the keys that a block owns: as a row sees keys, the other way round.

In a band key j lies on row j + q_len - kv_len, and is seen by the rows from `ahead` ahead of that to `behind` behind
it, which are a row's `after` and `before`. Where a mask is no band, two arrays of (batch, kv_len) say which row sees
each key first, and where those that see it end; a block keeps those of its keys. The CUDA twins are in backward.cuh and
_tiles/rows_seeing.cuh.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

from numba import cuda, int32

from variants._mma import numba_mma
from variants._mma.numba_spans import numba_spans


@functools.cache
def rows_seeing_keys(spans: bool, keys_kept: int) -> SimpleNamespace:
    """`keep_limits_of_keys`, `all_see`, `some_see`, `first_seeing` and `end_seeing` of a band, or where arrays say it.

    `spans`: the latter; a block keeps up to `keys_kept` keys then.

    Of rows `row` to `last` and `keys` keys from `key` on, with more than there are at the end: whether all rows see all
    keys, and whether any row may see one. And from which row on, up to which, a key is seen that is `further` behind
    `key`, counted from `row`.
    """
    seen = numba_spans(keys_kept, 0) if spans else numba_mma
    first_seen, end_seen = seen.first_seen, seen.end_seen

    if spans:  # keys beyond the last are kept, too, and seen by nobody
        keep_limits = seen.keep_limits

        @cuda.jit(device=True, forceinline=True)
        def keep_limits_of_keys(first_rows, end_rows, first_key, keys, q_len, kv_len):
            return keep_limits(first_rows, end_rows, first_key, keys, kv_len, q_len)

        @cuda.jit(device=True, forceinline=True)
        def all_see(row, last, key, keys, q_len, kv_len, ahead, behind):
            first = first_seen(int32(key + keys - 1), kv_len, q_len, ahead)
            return first <= row and last < end_seen(key, kv_len, q_len, behind)

        @cuda.jit(device=True, forceinline=True)
        def some_see(row, last, key, keys, q_len, kv_len, ahead, behind):
            end = end_seen(int32(key + keys - 1), kv_len, q_len, behind)
            return first_seen(key, kv_len, q_len, ahead) <= last and row < end

        @cuda.jit(device=True, forceinline=True)
        def first_seeing(further, key, row, q_len, kv_len, ahead):
            return int32(first_seen(int32(key + further), kv_len, q_len, ahead) - row)

        @cuda.jit(device=True, forceinline=True)
        def end_seeing(further, key, row, q_len, kv_len, behind):
            return int32(end_seen(int32(key + further), kv_len, q_len, behind) - row)

    else:

        @cuda.jit(device=True, forceinline=True)
        def keep_limits_of_keys(before, after, first_key, keys, q_len, kv_len):
            return after, before

        @cuda.jit(device=True, forceinline=True)
        def all_see(row, last, key, keys, q_len, kv_len, ahead, behind):
            end = end_seen(row, q_len, kv_len, ahead)
            return key >= first_seen(last, q_len, kv_len, behind) and int32(key + keys) <= end

        @cuda.jit(device=True, forceinline=True)
        def some_see(row, last, key, keys, q_len, kv_len, ahead, behind):
            first = first_seen(row, q_len, kv_len, behind)
            return key < end_seen(last, q_len, kv_len, ahead) and int32(key + keys) > first

        @cuda.jit(device=True, forceinline=True)
        def first_seeing(further, key, row, q_len, kv_len, ahead):
            return int32(further - int32(row + kv_len - q_len - key) - ahead)

        @cuda.jit(device=True, forceinline=True)
        def end_seeing(further, key, row, q_len, kv_len, behind):
            own = int32(further - int32(row + kv_len - q_len - key))  # the row on which the key lies
            rows = int32(min(int32(own + behind + 1), int32(q_len - row)))
            return rows if further < int32(kv_len - key) else int32(0)

    return SimpleNamespace(
        first_seen=first_seen,
        end_seen=end_seen,
        keep_limits_of_keys=keep_limits_of_keys,
        all_see=all_see,
        some_see=some_see,
        first_seeing=first_seeing,
        end_seeing=end_seeing,
    )
