"""Problems of paged attention in which a sequence, or a row, has to have the bits that it has in another problem."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from harness.model.cases.property import Arrays
from harness.model.invariance import BATCH, PADDING, Change, with_rows_before
from harness.operations.paged_attention.sequences import PagedSequences

PADDINGS = (1, 31)
"""Rows put before those of each sequence."""


def alone(problem: PagedSequences, inputs: Arrays) -> Change | None:
    """The longest sequence but the first without the others; None if there is one sequence."""
    if problem.sequences == 1:
        return None
    # Of its parts most meet those of others.
    own = max(range(1, problem.sequences), key=lambda sequence: problem.lengths[sequence])
    mine = slice(own, own + 1)
    given = {name: np.ascontiguousarray(inputs[name][mine]) for name in ("Q", "table", "lengths")}
    single = problem.with_fields(
        batch=1,
        lengths=problem.lengths[mine],
        prefix=0,
        in_use=None,
        pages=problem.pool_pages,
        table_len=problem.table_shape[1],
    )
    return Change(f"sequence {own} on its own", single, {**inputs, **given}, (mine,), (slice(None),))


def changes(problem: PagedSequences, inputs: Arrays, kind: str) -> Iterator[Change]:
    """Yield problems to compare with this one, for one of the first and the last of `INVARIANCES`."""
    if kind == BATCH:
        if (single := alone(problem, inputs)) is not None:
            yield single
        if not problem.far:
            yield _twice(problem, inputs)
    if kind == PADDING:
        for rows in PADDINGS:
            yield _padded(problem, inputs, rows)


def _twice(problem: PagedSequences, inputs: Arrays) -> Change:
    """Each sequence twice, with the same pages and other queries."""
    given = {name: np.concatenate((inputs[name],) * 2) for name in ("table", "lengths")}
    given["Q"] = np.concatenate((inputs["Q"], np.roll(inputs["Q"], 1, axis=-1)))
    twice = problem.with_fields(
        batch=2 * problem.sequences,
        lengths=problem.lengths * 2,
        prefix=0,
        in_use=(problem.pages_in_use, problem.keys_in_use),
        pages=problem.pool_pages,
        table_len=problem.table_shape[1],
    )
    what = f"with {problem.sequences} sequences more"
    return Change(what, twice, {**inputs, **given}, (slice(None),), (slice(problem.sequences),))


def _padded(problem: PagedSequences, inputs: Arrays, rows: int) -> Change:
    """Further rows, which may see evicted keys: their pages are page 0, whose rows belong to no sequence or another."""
    longer = problem.with_fields(
        q_len=problem.q_len + rows, in_use=(problem.pages_in_use, problem.keys_in_use), pages=problem.pool_pages
    )
    table = inputs["table"].copy()
    for row, length in zip(table, problem.lengths):
        row[longer.evicted_pages(length) : problem.evicted_pages(length)] = 0
    given = {**inputs, "Q": with_rows_before(inputs["Q"], rows), "table": table}
    whole = slice(None)
    return Change(f"after {rows} rows more", longer, given, (whole,), (whole, whole, slice(rows, None)))
