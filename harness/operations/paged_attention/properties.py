"""What must hold between several runs of one kernel, without knowing the answer.

A sequence's bits hang on nothing but its own rows: not on what else is in the batch, nor on where its pages lie.
"""

from __future__ import annotations

import numpy as np

from harness.model.cases.property import DETERMINISM, Property, Trial, invariance_of_batches, other_outputs
from harness.operations.paged_attention.invariance import alone


def batch_invariance(trial: Trial) -> str | None:
    """A sequence gives the same bits alone as in a batch with others."""
    change = alone(trial.problem, trial.inputs)
    if change is None:
        return None
    return other_outputs(trial, trial.run(change.problem, change.inputs), change.what, change.own)


def page_order(trial: Trial) -> str | None:
    """Pages moved to other places of the pool, and the table with them: the same bits."""
    problem = trial.problem
    pages = problem.pool_pages
    # Every page moves, where there are two.
    to = np.random.Generator(np.random.Philox(pages)).permutation(pages)
    to = np.roll(np.arange(pages), 1) if (to == np.arange(pages)).any() else to
    moved = dict(trial.inputs)
    for name in (tensor.name for tensor in problem.inputs if tensor.axis("page") is not None):
        moved[name] = np.empty_like(trial.inputs[name])
        moved[name][to] = trial.inputs[name]
    table = trial.inputs["table"]
    used = (table >= 0) & (table < pages)  # behind a sequence's last page there may be anything
    moved["table"] = np.where(used, to[np.where(used, table, 0)], table).astype(table.dtype)
    return other_outputs(trial, trial.run(problem, moved), "the same pages at other places")


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        DETERMINISM,
        invariance_of_batches(batch_invariance),
        Property("page-order", "another order of the pages gives the same bits", page_order, same_bits=True),
    )
}
"""Every property by name. A new one is a function and a line here."""
