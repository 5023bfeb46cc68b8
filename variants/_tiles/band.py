"""The masks of the kernels here as two numbers, so that one kernel serves them all: no mask, causal, a sliding window.

Row i lies on key i + kv_len - q_len and sees the keys from `before` ahead of that one to `after` behind it, as far as
there are keys. What has no limit gets one that no key is beyond. Where a mask is no band, kernels are compiled with
`SPANS` and get two arrays in place of the numbers, with each row's first key and its end, or each key's first row and
its end: see spans.cuh and rows_seeing.cuh.
"""

from __future__ import annotations

import numpy as np

from harness import Problem

FEATURES = ("causal", "window")
"""What a variant whose kernels take a band says that it `takes`."""

SPAN_FEATURES = (*FEATURES, "documents", "prefix")
"""What a variant says that it `takes` if its kernels are also compiled with `SPANS`."""
Limits = tuple[np.int32, np.int32] | tuple[str, str]


def has_spans(problem: Problem) -> bool:
    """Whether kernels read what rows see from arrays."""
    return not problem.mask.runs.is_band


def is_window(problem: Problem) -> bool:
    """Whether the mask is a band with limits on both sides, so that rows see neither the first keys nor the last."""
    beyond = problem.q_len + problem.kv_len
    return problem.mask.is_band and bool(max(band(problem)) < beyond)


def limits(problem: Problem) -> Limits:
    """(before, after), or the names of the arrays that stand for them."""
    return ("first_keys", "end_keys") if has_spans(problem) else band(problem)


def limits_of_keys(problem: Problem) -> Limits:
    """(before, after) for kernels in which a block owns keys, or the names of arrays with the rows that see each."""
    return ("first_rows", "end_rows") if has_spans(problem) else band(problem)


def band(problem: Problem) -> tuple[np.int32, np.int32]:
    """(before, after), as kernels take them; at most q_len + kv_len each. Intersections are the narrower of each."""
    beyond = problem.q_len + problem.kv_len
    limits = [part.limits for part in problem.mask.runs.parts]
    before = min([beyond, *(left for left, _ in limits if left is not None)])
    after = min([beyond, *(right for _, right in limits if right is not None)])
    return np.int32(before), np.int32(after)
