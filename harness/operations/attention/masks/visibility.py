"""Evaluates masks for all rows of a problem; cached, because closed forms, oracles and drawn inputs all need them."""

from __future__ import annotations

import functools

import numpy as np

from harness.operations.attention.masks.mask import Integers, Mask, Visibility

MOST_PAIRS = 2**22
"""Maximum pairs of a row and a key that are evaluated together."""


@functools.lru_cache(maxsize=16)
def spans_of_rows(mask: Mask, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
    """Return (first, end) of all rows, each of shape (sequences, q_len); see `Problem.spans`."""
    rows = np.arange(q_len, dtype=np.int64)
    runs = [mask.of_sequence(number).span(rows, q_len, kv_len) for number in range(mask.sequences)]
    first, end = (np.stack(each) for each in zip(*runs))
    for each in (first, end):
        each.flags.writeable = False
    return first, end


@functools.lru_cache(maxsize=16)
def keys_seen_by_rows(mask: Mask, heads: int, q_len: int, kv_len: int) -> Integers:
    """Return the number of keys that each row sees, (sequences x heads, q_len)."""
    if mask.is_run:
        first, end = spans_of_rows(mask, q_len, kv_len)
        lengths: Integers = np.maximum(end - first, 0)
        return lengths
    keys = np.arange(kv_len, dtype=np.int64)[None, :]
    rows_per_part = max(1, MOST_PAIRS // kv_len)
    counted = []
    for one in (mask.of_sequence(n).of_head(head) for n in range(mask.sequences) for head in range(heads)):
        firsts = range(0, q_len, rows_per_part)
        parts = (np.arange(row, min(row + rows_per_part, q_len), dtype=np.int64)[:, None] for row in firsts)
        counted.append(np.concatenate([np.count_nonzero(one.visible(r, keys, q_len, kv_len), axis=1) for r in parts]))
    seen: Integers = np.stack(counted).astype(np.int64)
    seen.flags.writeable = False
    return seen


@functools.lru_cache(maxsize=4)
def visible_keys(mask: Mask, q_len: int, kv_len: int) -> Visibility:
    """Return which keys each row sees under a mask of one sequence and head, (q_len, kv_len)."""
    rows, keys = np.arange(q_len, dtype=np.int64)[:, None], np.arange(kv_len, dtype=np.int64)[None, :]
    return np.broadcast_to(mask.visible(rows, keys, q_len, kv_len), (q_len, kv_len))
