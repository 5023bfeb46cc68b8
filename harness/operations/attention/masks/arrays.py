"""What a mask gives kernels as inputs of the problem: each row's run of keys, where it is no band, and other rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from harness.operations.attention.problem import Problem

FIRST_KEYS, END_KEYS = "first_keys", "end_keys"
"""Their names: int32, (batch, q_len)."""
BLOCKS = "blocks"
"""Which blocks of a mask are on: int32, (heads that differ, rows of blocks, blocks in each)."""

HIDDEN_ROWS = "hidden_rows"
"""Where the spans of rows that do not see a key start and end: int32, (2 x spans of a key, kv_len)."""


def mask_arrays(problem: Problem) -> dict[str, np.ndarray]:
    """By name; none of a band."""
    arrays = _runs(problem)
    if problem.blocks is not None:
        arrays[BLOCKS] = problem.blocks.array(problem.heads, problem.q_len, problem.kv_len).astype(np.int32)
    if problem.flashmask is not None:
        arrays[HIDDEN_ROWS] = problem.flashmask.hidden_rows(problem.q_len, problem.kv_len).astype(np.int32)
    return arrays


def _runs(problem: Problem) -> dict[str, np.ndarray]:
    if problem.mask.runs.is_band:
        return {}
    first, end = problem.spans
    shape = (problem.batch, problem.q_len)
    # A row that sees nothing ends where it begins, which keeps runs from moving backwards.
    runs = {FIRST_KEYS: first, END_KEYS: np.maximum(first, end)}
    return {name: np.ascontiguousarray(np.broadcast_to(each, shape).astype(np.int32)) for name, each in runs.items()}
