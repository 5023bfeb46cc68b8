"""Arrays of unpadded sequences as `flash_attn_varlen_func` takes them: (all rows, heads, head_dim), `cu_seqlens`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.operations.attention.masks.arrays import CU_SEQLENS_K, CU_SEQLENS_Q
from harness.operations.attention.masks.varlen import Varlen
from harness.studies.run.python_arrays import as_numpy
from harness.studies.run.user_arrays import Given
from harness.support.errors import UsageError

CU_SEQLENS = (CU_SEQLENS_Q, CU_SEQLENS_K)
OF_KEYS = ("K", "V")
"""Arrays with a row per key; others have one per query."""
LSE = "lse"
"""Where the rows, and the keys, of each sequence begin, and their number: (sequences + 1,) whole numbers."""


def sequences_of(starts: Mapping[str, Any]) -> Varlen:
    """Return the sequences that begin at `starts`, the arrays `CU_SEQLENS`; that of K is that of Q if it is missing.

    Raises `UsageError` if one of them is no such array.
    """
    if CU_SEQLENS_Q not in starts:
        raise UsageError(f"give {CU_SEQLENS_Q}, too")
    lengths = {name: _lengths(name, array) for name, array in starts.items()}
    rows = lengths[CU_SEQLENS_Q]
    keys = lengths.get(CU_SEQLENS_K, rows)
    if len(rows) != len(keys):
        raise UsageError(f"{CU_SEQLENS_Q} has {len(rows)} sequences and {CU_SEQLENS_K} has {len(keys)}")
    return Varlen(rows, keys)


def _lengths(name: str, array: Any) -> tuple[int, ...]:
    starts = as_numpy(name, array)
    if starts.ndim != 1 or len(starts) < 2 or starts.dtype.kind not in "iu":
        raise UsageError(
            f"{name} is {starts.dtype}{starts.shape}; it has to be (sequences + 1,) whole numbers, 0 and the running "
            "sum of the lengths"
        )
    lengths = np.diff(starts.astype(np.int64))
    if starts[0] != 0 or (lengths < 0).any():
        raise UsageError(f"{name} begins with {starts[0]} and must begin with 0 and never decrease")
    return tuple(map(int, lengths))


def with_batch(name: str, given: Given, total: int) -> Given:
    """Return (all rows, heads, elements) as (1, heads, all rows, elements), and lse as (1, heads, all rows), views.

    Raises `UsageError` if a shape is another one.
    """
    if name == LSE:
        if given.array.ndim != 2 or given.array.shape[1] != total:
            raise UsageError(f"{name} has shape {given.array.shape}; with cu_seqlens it has to be (heads, {total})")
        return Given(given.place, given.array[None])
    if given.array.ndim != 3 or given.array.shape[0] != total:
        raise UsageError(
            f"{name} has shape {given.array.shape}; with cu_seqlens it has to be ({total}, heads, head_dim)"
        )
    return Given(given.place, given.array.transpose(1, 0, 2)[None])


def without_batch(output: np.ndarray) -> np.ndarray:
    """Return O, or a gradient, as (all rows or keys, heads, elements), and lse as (heads, all rows)."""
    whole: np.ndarray = output[0]
    return np.ascontiguousarray(whole.transpose(1, 0, 2)) if whole.ndim == 3 else whole
