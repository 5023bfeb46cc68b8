"""Chooses the rows of a large problem for which the oracle computes the answer, distributed over rows and heads."""

from __future__ import annotations

import numpy as np

from harness.model.operation import WHOLE, Part
from harness.model.parts_of_rows import ROWS_PER_PART, count_of_parts, oracle_flops, part_flops
from harness.operations.attention.problem import Problem


def choose_parts(problem: Problem, whole_flops: float) -> tuple[Part, ...]:
    """Return the whole of a problem of up to `whole_flops`, ignoring masks, or else runs of rows of single heads."""
    p = problem
    heads = p.batch * p.heads
    each = part_flops(p.kv_len, p.head_dim)
    if oracle_flops(heads * p.q_len / ROWS_PER_PART * each, p.q_len) <= whole_flops:
        return (WHOLE,)
    # Rows that see no key are not worth checking.
    seeing = np.flatnonzero((p.keys_seen > 0).any(axis=0))
    first_row, end_row = (int(seeing[0]), int(seeing[-1]) + 1) if len(seeing) else (0, p.q_len)
    count = count_of_parts(heads, each, whole_flops)
    parts = []
    for number in range(count):
        batch, head = divmod(number * (heads - 1) // (count - 1), p.heads)
        start = first_row + round(number * (end_row - first_row) / (count - 1) / ROWS_PER_PART) * ROWS_PER_PART
        start = max(0, min(start, end_row - ROWS_PER_PART))
        stop = min(p.q_len, start + ROWS_PER_PART)
        where = (slice(batch, batch + 1), slice(head, head + 1), slice(start, stop))
        parts.append(Part(where, f"batch {batch}, head {head}, rows {start} to {stop - 1}"))
    return tuple(parts)
