"""What a mask gives kernels as inputs of the problem: each row's run of keys, where it is no band, and other rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from harness.operations.attention.problem import Problem

FIRST_KEYS, END_KEYS = "first_keys", "end_keys"
"""Their names: int32, (batch, q_len)."""
FIRST_ROWS, END_ROWS = "first_rows", "end_rows"
"""Names of the runs of rows that see each key: int32, (batch, kv_len)."""
BLOCKS = "blocks"
"""Which blocks of a mask are on: int32, (heads that differ, rows of blocks, blocks in each)."""

HIDDEN_ROWS = "hidden_rows"
"""Where the spans of rows that do not see a key start and end: int32, (2 x spans of a key, kv_len)."""


def mask_arrays(problem: Problem) -> dict[str, np.ndarray]:
    """By name; none of a band."""
    arrays = runs_of_rows(problem)
    if problem.blocks is not None:
        arrays[BLOCKS] = problem.blocks.array(problem.heads, problem.q_len, problem.kv_len).astype(np.int32)
    if problem.flashmask is not None:
        arrays[HIDDEN_ROWS] = problem.flashmask.hidden_rows(problem.q_len, problem.kv_len).astype(np.int32)
    return arrays


def runs_of_rows(problem: Problem) -> dict[str, np.ndarray]:
    """`first_keys` and `end_keys`; none of a band. Neither ever goes down from a row to the next."""
    if problem.mask.runs.is_band:
        return {}
    first, end = _runs(problem)
    return _of_all_sequences(problem.batch, {FIRST_KEYS: first, END_KEYS: end})


def runs_of_keys(problem: Problem) -> dict[str, np.ndarray]:
    """`first_rows` and `end_rows`; none of a band. Neither ever goes down from a key to the next.

    Since runs of rows never move backwards, the rows that see a key are a run, too: from the first that ends behind the
    key up to the first that begins behind it. FlashMask's column-wise spans say the same (Wang et al. 2024, arXiv
    2410.01359), of the rows that do not see a key.
    """
    if problem.mask.runs.is_band:
        return {}
    first, end = _runs(problem)
    keys = np.arange(problem.kv_len)

    def behind(limits: np.ndarray) -> np.ndarray:
        return np.stack([np.searchsorted(of_sequence, keys, side="right") for of_sequence in limits])

    return _of_all_sequences(problem.batch, {FIRST_ROWS: behind(end), END_ROWS: behind(first)})


def _runs(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """(first, end) of each row, once for all sequences that see alike: (sequences, q_len)."""
    first, end = problem.spans
    # A row that sees nothing ends where it begins, which keeps runs from moving backwards.
    return first, np.maximum(first, end)


def _of_all_sequences(batch: int, runs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: np.ascontiguousarray(np.broadcast_to(each, (batch, each.shape[1])).astype(np.int32))
        for name, each in runs.items()
    }
