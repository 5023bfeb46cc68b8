"""What must hold between several runs of one plan, without knowing the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from harness.model.array_types import Arrays
from harness.model.cases.property import (
    DETERMINISM,
    Property,
    Trial,
    alignment_period,
    invariance_of_batches,
    other_outputs,
)
from harness.model.invariance import BATCH, Change
from harness.operations._across_devices.problem import DividedProblem


def alone(problem: DividedProblem, inputs: Arrays) -> Change | None:
    """One sequence without the others of its batch; None if there are no others."""
    if problem.batch == 1:
        return None
    # Chunks of the batch lie behind each other on a device: one begins at a vector where all chunks of those before do.
    period = alignment_period(*(inputs[name] for name in "QKV"))
    chosen = (problem.batch - 1) // period * period
    own = slice(chosen, chosen + 1)
    given = {name: np.ascontiguousarray(array[own]) for name, array in inputs.items()}
    single = dataclasses.replace(problem, batch=1)
    return Change(f"batch entry {chosen} on its own", single, given, (own,), (slice(None),))


def changes(problem: DividedProblem, inputs: Arrays, kind: str) -> Iterator[Change]:
    """Yield problems to compare with this one, for the first of `INVARIANCES`."""
    if kind == BATCH and (change := alone(problem, inputs)) is not None:
        yield change


def batch_invariance(trial: Trial) -> str | None:
    """A sequence alone gives the same bits as in a batch."""
    change = alone(trial.problem, trial.inputs)
    if change is None:
        return None
    return other_outputs(trial, trial.run(change.problem, change.inputs), change.what, change.own[0])


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        DETERMINISM,
        invariance_of_batches(batch_invariance),
    )
}
"""Every property by name."""
