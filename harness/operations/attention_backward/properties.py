"""What must hold between several runs of one kernel, or within one, without knowing the gradients.

Each property is a function of a `Trial`: None, or what does not hold and where. The budgets come from the oracle's
answer, but the answer itself is not used: a mistake that the oracle and a kernel share would show here.
"""

from __future__ import annotations

import numpy as np

from harness.model.arithmetic.rounding import UNIT_ROUNDOFF
from harness.model.cases.property import DETERMINISM, Property, Trial, apart, on_grid
from harness.model.operation import operation_named
from harness.operations.attention.score_terms import SINKS


def gradient_sum(trial: Trial) -> str | None:
    """Gradients are linear in dO: those of dO and of dO' together are those of dO + dO'."""
    one = on_grid(trial.inputs["dO"])
    other = np.ascontiguousarray(np.roll(one, 1, axis=-1))
    both = (one.astype(np.float64) + other.astype(np.float64)).astype(one.dtype)
    inputs = [{**trial.inputs, "dO": dO} for dO in (one, other, both)]
    errors = [trial.begin_allowed(each) for each in inputs]
    outputs = [trial.run(trial.problem, each) for each in inputs]
    allowed = [of_outputs(made) for of_outputs, made in zip(errors, outputs)]
    for name in trial.outputs:
        of_one, of_other, of_both = (made[name].astype(np.float64) for made in outputs)
        total = sum(each[name] for each in allowed)
        if reason := apart(trial, name, of_one + of_other, of_both, np.asarray(total), "the sum for two dO"):
            return reason
    return None


def weights_sum(trial: Trial) -> str | None:
    """A row's weights add up to 1: dV, added up over keys, is dO, added up over the rows that see one.

    A sink takes its share of 1. Not where weights drop out, or where slopes are not those that lse was computed with.
    """
    problem, u = trial.problem, UNIT_ROUNDOFF["float32"]
    derived = (term.derived(problem) for term in problem.terms)
    fits = all(np.array_equal(trial.inputs[name], array) for each in derived for name, array in each.items())
    if problem.dropout or not fits:
        return None
    lse, dO = (trial.inputs[name].astype(np.float64) for name in ("lse", "dO"))
    sees = ~np.isneginf(lse)
    of_keys = sees.astype(np.float64)
    if problem.sinks:
        with np.errstate(invalid="ignore"):
            of_keys = np.where(sees, -np.expm1(trial.inputs[SINKS].astype(np.float64)[:, None] - lse), 0.0)
    with np.errstate(invalid="ignore"):
        seen = np.where(sees[..., None], of_keys[..., None] * dO, 0.0)
    # exp(-lse) is off by as much as lse is, which is stored in float32.
    exponent = 2 * u * np.maximum(np.abs(np.where(np.isfinite(lse), lse, 0.0)), 1)
    off = np.abs(np.where(sees[..., None], dO, 0.0)) * np.expm1(exponent)[..., None]
    grouped = (problem.batch, problem.kv_heads_count, problem.group * problem.q_len, problem.v_width)
    expected, off = (x.reshape(grouped).sum(axis=2) for x in (seen, off))
    dV = trial.outputs["dV"].astype(np.float64).sum(axis=2)
    allowed = trial.begin_allowed(trial.inputs)(trial.outputs)["dV"].sum(axis=2) + off
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(dV - expected) <= allowed) & np.isfinite(allowed)
    if not wrong.any():
        return None
    batch, head, column = (int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return (
        f"dV summed over keys differs from dO summed over rows by more than its budget allows, first at batch {batch}, "
        f"head {head}, column {column}: {dV[batch, head, column]:.9g} and {expected[batch, head, column]:.9g}"
    )


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        DETERMINISM,
        operation_named("attention").properties["batch-invariance"],
        Property("gradient-sum", "the gradients for dO + dO' equal the sum of those for dO and for dO'", gradient_sum),
        Property("weights-sum", "dV summed over keys equals dO summed over rows", weights_sum),
    )
}
"""Every property by name. A new one is a function and a line here."""
