"""Masks as two numbers, so that one kernel supports no mask, the causal mask and sliding windows.

Row i is at key i + kv_len - q_len and sees the keys from `before` before that one to `after` after it. A missing limit
is replaced by one that exceeds all distances. If a mask is not a band, kernels are compiled with `SPANS` and get two
arrays in place of the numbers, with each row's first key and end, or each key's first row and end (spans.cuh,
rows_seeing.cuh).
"""

from __future__ import annotations

import numpy as np

from harness import Problem

FEATURES = ("causal", "window")
"""Features in `takes` of a variant whose kernels support bands."""

SPAN_FEATURES = (*FEATURES, "documents", "prefix")
"""Features in `takes` of a variant whose kernels are also compiled with `SPANS`."""
Limits = tuple[np.int32, np.int32] | tuple[str, str]


def has_spans(problem: Problem) -> bool:
    """Whether kernels read the runs of rows from arrays."""
    return not problem.mask.runs.is_band


def is_window(problem: Problem) -> bool:
    """Whether the mask is a band with limits on both sides, so that rows see neither the first keys nor the last."""
    beyond = problem.q_len + problem.kv_len
    return problem.mask.is_band and bool(max(band(problem)) < beyond)


def limits(problem: Problem) -> Limits:
    """Return (before, after), or the names of the arrays that replace them."""
    return ("first_keys", "end_keys") if has_spans(problem) else band(problem)


def limits_of_keys(problem: Problem) -> Limits:
    """(before, after) for kernels in which a block owns keys, or the names of arrays with the rows that see each."""
    return ("first_rows", "end_rows") if has_spans(problem) else band(problem)


def band(problem: Problem) -> tuple[np.int32, np.int32]:
    """Return (before, after) as kernel arguments, each at most q_len + kv_len, and the minimum over all bands."""
    beyond = problem.q_len + problem.kv_len
    limits = [part.limits for part in problem.mask.runs.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)
