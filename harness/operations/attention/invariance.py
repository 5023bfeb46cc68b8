"""Problems of attention in which a sequence, or a row, has to have the bits that it has in another problem."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from harness.model.array_types import Arrays
from harness.model.cases.property import alignment_period
from harness.model.invariance import BATCH, PADDING, Change, with_rows_before
from harness.operations.attention.layout import DENSE
from harness.operations.attention.problem import Problem

COMPANY = 3
"""Sequences that join a batch."""
PADDINGS = (1, 63)
"""Rows put before those of each sequence: another row of a tile, and nearly all of a tile, or several."""


def alone(problem: Problem, inputs: Arrays) -> Change | None:
    """One sequence without the others of its batch; None if there are no others.

    It is the first one with dropout, which depends on its index, and otherwise the last one that begins at a vector.
    """
    if problem.batch == 1:
        return None
    of_batch = {tensor.name for tensor in problem.inputs if tensor.axes[0] == "batch"}
    period = alignment_period(*(inputs[name] for name in "QKV"))
    chosen = 0 if problem.dropout else (problem.batch - 1) // period * period
    own = slice(chosen, chosen + 1)
    return Change(
        f"batch entry {chosen} on its own",
        dataclasses.replace(problem, batch=1, mask=problem.mask.of_sequence(chosen)),
        {n: np.ascontiguousarray(a[own]) if n in of_batch else a for n, a in inputs.items()},
        (own,),
        (slice(None),),
    )


def changes(problem: Problem, inputs: Arrays, kind: str) -> Iterator[Change]:
    """Yield problems to compare with this one, for one of the first and the last of `INVARIANCES`."""
    if kind == BATCH:
        if (single := alone(problem, inputs)) is not None:
            yield single
        if problem.mask.sequences == 1 and problem.layout == DENSE:
            yield _with_company(problem, inputs)
    if kind == PADDING and _may_be_padded(problem):
        for rows in PADDINGS:
            yield _padded(problem, inputs, rows)


def _with_company(problem: Problem, inputs: Arrays) -> Change:
    given = dict(inputs)
    for tensor in problem.inputs:
        if tensor.axes[0] == "batch":
            other = inputs[tensor.name][:1]
            other = np.roll(other, 1, axis=-1) if tensor.name in "QKV" else other
            given[tensor.name] = np.concatenate((inputs[tensor.name], *(other,) * COMPANY))
    joined = dataclasses.replace(problem, batch=problem.batch + COMPANY)
    return Change(f"with {COMPANY} sequences more", joined, given, (slice(None),), (slice(problem.batch),))


def _may_be_padded(problem: Problem) -> bool:
    """Whether rows before the first ones leave the others as they are: keys are aligned with the last row."""
    is_band = problem.mask.is_run and problem.mask.runs.is_band
    return is_band and not problem.dropout and problem.bias is None and problem.layout == DENSE


def _padded(problem: Problem, inputs: Arrays, rows: int) -> Change:
    longer = dataclasses.replace(problem, q_len=problem.q_len + rows)
    given = {**inputs, "Q": with_rows_before(inputs["Q"], rows)}
    whole = slice(None)
    return Change(f"after {rows} rows more", longer, given, (whole,), (whole, whole, slice(rows, None)))
