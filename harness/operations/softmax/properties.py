"""What must hold between several runs of one kernel, or within one, without knowing the answer.

Each property is a function of a `Trial`. Where two runs round on their own, each may be off by its own budget; where
the very same bits must come, they must.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from harness.model.cases.property import DETERMINISM, Property, Trial, alignment_period, apart, on_grid, other_outputs

SHIFT = 4.0


def row_invariance(trial: Trial) -> str | None:
    """The last row gives the same bits among fewer rows, of other values.

    It begins at the same place in a vector as before.
    """
    problem, X = trial.problem, trial.inputs["X"]
    if problem.rows == 1:
        return None
    last = problem.rows - 1
    others = (X[: last % alignment_period(X)] * X.dtype.type(-0.5)).astype(X.dtype)
    fewer = {"X": np.concatenate([others, X[last:]])}
    outputs = trial.run(dataclasses.replace(problem, rows=len(fewer["X"])), fewer)
    alone = {name: output[len(others) :] for name, output in outputs.items()}
    return other_outputs(trial, alone, f"row {last} among other rows", slice(last, None))


def column_order(trial: Trial) -> str | None:
    """Columns in another order: Y follows."""
    order = np.random.Generator(np.random.Philox(trial.problem.columns)).permutation(trial.problem.columns)
    other = {"X": np.ascontiguousarray(trial.inputs["X"][:, order])}
    allowed_errors, errors_of_permuted = trial.begin_allowed(trial.inputs), trial.begin_allowed(other)
    outputs = trial.run(trial.problem, other)
    permuted = outputs["Y"]
    allowed = allowed_errors(trial.outputs)["Y"][:, order] + errors_of_permuted(outputs)["Y"]
    return apart(trial, "Y", trial.outputs["Y"][:, order], permuted, allowed, "columns in another order")


def shift(trial: Trial) -> str | None:
    """One number added to every element: Y stays."""
    X = on_grid(trial.inputs["X"])
    before, after = ({"X": (X.astype(np.float64) + by).astype(X.dtype)} for by in (0.0, SHIFT))
    allowed_before, allowed_after = trial.begin_allowed(before), trial.begin_allowed(after)
    first, second = (trial.run(trial.problem, inputs) for inputs in (before, after))
    allowed = allowed_before(first)["Y"] + allowed_after(second)["Y"]
    return apart(trial, "Y", first["Y"], second["Y"], allowed, "all elements moved by one number")


def unit_sum(trial: Trial) -> str | None:
    """Every row adds up to 1."""
    Y = trial.outputs["Y"]
    allowed = trial.begin_allowed(trial.inputs)(trial.outputs)["Y"]
    budget = allowed.sum(axis=1)
    with np.errstate(invalid="ignore"):
        total = Y.astype(np.float64).sum(axis=1)
        wrong = np.isfinite(budget) & ~(np.abs(total - 1) <= budget)
    if not wrong.any():
        return None
    row = int(np.argmax(wrong))
    return (
        f"{int(wrong.sum()):,} of {len(wrong):,} rows of Y do not add up to 1, the first is row {row}: "
        f"{float(total[row]):.9g}, further off than the {float(budget[row]):.3g} that its budgets add up to"
    )


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        DETERMINISM,
        Property("row-invariance", "a row gives the same bits among other rows", row_invariance, same_bits=True),
        Property("column-order", "if columns are reordered, Y is reordered in the same way", column_order),
        Property("shift", "if a constant is added to every element, Y does not change", shift),
        Property("unit-sum", "every row sums to 1", unit_sum),
    )
}
"""Every property by name. A new one is a function and a line here."""
