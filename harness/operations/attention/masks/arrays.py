"""Arrays that kernels get as inputs for masks that are not bands: runs of keys, blocks, hidden rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from harness.operations.attention.problem import Problem

FIRST_KEYS, END_KEYS = "first_keys", "end_keys"
"""Names of the first key that each row sees, and of the end of its run: int32, (batch, q_len)."""
FIRST_ROWS, END_ROWS = "first_rows", "end_rows"
"""Names of the first row that sees each key, and of the end of that run: int32, (batch, kv_len)."""
BLOCKS = "blocks"
"""Name of the array of a block mask that says which blocks are on: int32, (heads or 1, row blocks, key blocks)."""

CU_SEQLENS_Q, CU_SEQLENS_K = "cu_seqlens_q", "cu_seqlens_k"
"""Names of the first row, and the first key, of each unpadded sequence, and of the number of all: int32, (sequences +
1,)."""

HIDDEN_ROWS = "hidden_rows"
"""Name of the starts and ends of the spans of rows that do not see a key: int32, (2 x spans per key, kv_len)."""


def mask_arrays(problem: Problem) -> dict[str, np.ndarray]:
    """Return the arrays of the problem's mask by name; none for a band."""
    arrays = runs_of_rows(problem)
    if problem.sequences is not None:
        arrays[CU_SEQLENS_Q] = np.array(problem.sequences.q_starts, np.int32)
        arrays[CU_SEQLENS_K] = np.array(problem.sequences.kv_starts, np.int32)
    if problem.blocks is not None:
        arrays[BLOCKS] = problem.blocks.array(problem.heads, problem.q_len, problem.kv_len).astype(np.int32)
    if problem.flashmask is not None:
        arrays[HIDDEN_ROWS] = problem.flashmask.hidden_rows(problem.q_len, problem.kv_len).astype(np.int32)
    return arrays


def runs_of_rows(problem: Problem) -> dict[str, np.ndarray]:
    """Return `first_keys` and `end_keys`, which never decrease from a row to the next; none for a band."""
    if problem.mask_within.runs.is_band:
        return {}
    first, end = _runs(problem)
    return _of_all_sequences(problem.batch, {FIRST_KEYS: first, END_KEYS: end})


def runs_of_keys(problem: Problem) -> dict[str, np.ndarray]:
    """Return `first_rows` and `end_rows`, which never decrease from a key to the next; none for a band.

    Since the runs of rows never move backwards, the rows that see a key are also a run: from the first one whose run
    ends after the key to the first one whose run starts after it. FlashMask's columns describe the rows that do not see
    a key in the same way (Wang et al. 2024, arXiv 2410.01359).
    """
    if problem.mask_within.runs.is_band:
        return {}
    first, end = _runs(problem)
    keys = np.arange(problem.kv_len)

    def rows_up_to(limits: np.ndarray) -> np.ndarray:
        return np.stack([np.searchsorted(of_sequence, keys, side="right") for of_sequence in limits])

    return _of_all_sequences(problem.batch, {FIRST_ROWS: rows_up_to(end), END_ROWS: rows_up_to(first)})


def _runs(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return (first, end) of each row, (sequences or 1, q_len); 1 if all sequences are the same."""
    first, end = problem.spans
    # The run of a row that sees no key ends at its start, so that runs do not move backwards.
    return first, np.maximum(first, end)


def _of_all_sequences(batch: int, runs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        name: np.ascontiguousarray(np.broadcast_to(each, (batch, each.shape[1])).astype(np.int32))
        for name, each in runs.items()
    }
