"""Problems of paged attention in which a sequence, or a row, has to have the bits that it has in another problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.model.cases.property import Arrays
from harness.model.invariance import BATCH, PADDING, Change, with_rows_before
from harness.operations.attention.masks import CU_SEQLENS_Q
from harness.operations.paged_attention.chunks import Q_LENGTHS
from harness.operations.paged_attention.sequences import PagedSequences

PADDINGS = (1, 31)
"""Rows put before those of each sequence."""


def alone(problem: PagedSequences, inputs: Arrays) -> Change | None:
    """The longest sequence but the first without the others; None if there is one sequence. It has rows."""
    others = [sequence for sequence in range(1, problem.sequences) if problem.rows[sequence]]
    if not others:
        return None
    # Of its parts most meet those of others.
    own = max(others, key=lambda sequence: problem.lengths[sequence])
    mine = slice(own, own + 1)
    given = {name: np.ascontiguousarray(inputs[name][mine]) for name in ("table", "lengths")}
    place = _place(problem, own)
    given |= {"Q": np.ascontiguousarray(inputs["Q"][place])}
    single = problem.with_fields(
        batch=1,
        lengths=problem.lengths[mine],
        **_rows(problem, problem.rows[mine]),
        prefix=0,
        in_use=None,
        pages=problem.pool_pages,
        table_len=problem.table_shape[1],
    )
    return Change(f"sequence {own} on its own", single, _with(single, inputs, given), place, (slice(None),))


def _place(problem: PagedSequences, sequence: int) -> tuple[slice, ...]:
    """Where a sequence is in Q, O and lse; the axes stay."""
    if problem.q_lengths is None:
        return (slice(sequence, sequence + 1),)
    return (slice(None), slice(None), slice(*problem.row_starts[sequence : sequence + 2]))


def _rows(problem: PagedSequences, rows: Sequence[int]) -> dict[str, object]:
    """The field with the rows of each sequence, if the problem has it."""
    return {} if problem.q_lengths is None else {Q_LENGTHS: tuple(rows)}


def _with(problem: PagedSequences, inputs: Arrays, given: Arrays) -> Arrays:
    """The inputs with `given` among them, and those that follow from where the rows of `problem` begin."""
    starts = {} if problem.q_lengths is None else {CU_SEQLENS_Q: np.array(problem.row_starts, np.int32)}
    return {**inputs, **given, **starts}


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
    axis = 0 if problem.q_lengths is None else 2
    given["Q"] = np.concatenate((inputs["Q"], np.roll(inputs["Q"], 1, axis=-1)), axis)
    twice = problem.with_fields(
        batch=2 * problem.sequences,
        lengths=problem.lengths * 2,
        **_rows(problem, problem.rows * 2),
        prefix=0,
        in_use=(problem.pages_in_use, problem.keys_in_use),
        pages=problem.pool_pages,
        table_len=problem.table_shape[1],
    )
    what = f"with {problem.sequences} sequences more"
    there = (*(slice(None),) * axis, slice(problem.q_shape[axis]))
    return Change(what, twice, _with(twice, inputs, given), (slice(None),), there)


def _padded(problem: PagedSequences, inputs: Arrays, rows: int) -> Change:
    """Further rows, which may see evicted keys: their pages are page 0, whose rows belong to no sequence or another."""
    whole = slice(None)
    places = [_place(problem, sequence) for sequence in range(problem.sequences) if problem.rows[sequence]]
    fields: dict[str, Any]
    if problem.q_lengths is None:
        fields, places, there = {"q_len": problem.q_len + rows}, [()], np.arange(rows, problem.q_len + rows)
    else:
        # Sequences without rows get none.
        longer_rows = [own + rows * (own > 0) for own in problem.rows]
        fields = {Q_LENGTHS: tuple(longer_rows)}
        ends = [(end - own, end) for end, own in zip(np.cumsum(longer_rows), problem.rows)]
        there = np.concatenate([np.arange(*each) for each in ends])
    longer = problem.with_fields(**fields, in_use=(problem.pages_in_use, problem.keys_in_use), pages=problem.pool_pages)
    table = inputs["table"].copy()
    for row, first, end in zip(table, longer.evicted_pages, problem.evicted_pages):
        row[first:end] = 0
    Q = np.concatenate([with_rows_before(inputs["Q"][place], rows) for place in places], axis=2)
    given = _with(longer, inputs, {"Q": Q, "table": table})
    return Change(f"after {rows} rows more", longer, given, (whole,), (whole, whole, there))
