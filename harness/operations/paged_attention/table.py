"""Tables that a user gives: the problem that they pose, and what is wrong with those that pose none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.operations.paged_attention.problem import PagedProblem, require_page_size
from harness.support.errors import UsageError


def problem_of_arrays(arrays: Mapping[str, np.ndarray], dtype: str, fields: Mapping[str, Any]) -> PagedProblem:
    """The problem that these arrays pose. Raises `UsageError` or `ProblemError` where they do not fit together."""
    Q, K, V, table, lengths = (arrays[name] for name in ("Q", "K", "V", "table", "lengths"))
    if K.shape != V.shape:
        raise UsageError(f"K has shape {K.shape} and V {V.shape}; they have to be the same")
    if Q.shape[3] != K.shape[3]:
        raise UsageError(f"the rows of Q have {Q.shape[3]} elements and those of K and V {K.shape[3]}")
    if not len(Q) == len(table) == len(lengths):
        raise UsageError(f"Q has {len(Q)} sequences, the table {len(table)} and lengths {len(lengths)}")
    pages, page_size = K.shape[0], K.shape[2]
    require_page_size(page_size)
    fill = _fill_of_pages(table, lengths, pages, page_size)
    return PagedProblem(
        heads=Q.shape[1], kv_heads=K.shape[1], q_len=Q.shape[2], lengths=tuple(lengths.tolist()), head_dim=Q.shape[3],
        dtype=dtype, page_size=page_size, pages=pages, table_len=table.shape[1],
        in_use=(int(np.count_nonzero(fill)), int(fill.sum())), **fields,
    )  # fmt: skip


def _fill_of_pages(table: np.ndarray, lengths: np.ndarray, pages: int, page_size: int) -> np.ndarray:
    """How many rows of each page some sequence has. Raises `UsageError`, which names the first entry that is bad."""
    fill = np.zeros(pages, np.int64)
    room = table.shape[1] * page_size
    for sequence, length in enumerate(lengths.tolist()):
        if length < 0:
            raise UsageError(f"sequence {sequence} has length {length}; it has to be at least 0")
        if length > room:
            raise UsageError(
                f"sequence {sequence} has length {length}; its row of the table has {table.shape[1]} places for pages "
                f"of {page_size} rows, which is {room}"
            )
        used = table[sequence, : -(-length // page_size)]
        bad = np.flatnonzero((used < 0) | (used >= pages))
        if len(bad):
            place = int(bad[0])
            raise UsageError(
                f"sequence {sequence} has page {int(used[place])} at place {place} of the table; the pool has {pages}, "
                f"0 to {pages - 1}"
            )
        full = length // page_size
        np.maximum.at(fill, used[:full], page_size)
        np.maximum.at(fill, used[full:], length % page_size)
    return fill
