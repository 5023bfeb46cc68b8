"""Properties that relate several runs of one kernel, or hold within one, without the answer.

Each property is a function of a `Trial` that returns None, or a message that says what does not hold and where. Runs
that round differently may each differ by their budgets; runs that must agree bitwise are compared bitwise.

Budgets depend on the oracle's answer, but results are not compared with it, so properties can reveal a mistake that the
oracle and a kernel share.
"""

from __future__ import annotations

import numpy as np

from harness.model.array_types import Float64Array
from harness.model.cases.property import (
    DETERMINISM,
    Property,
    Trial,
    apart,
    invariance_of_batches,
    on_grid,
    other_outputs,
)
from harness.operations.attention.invariance import alone
from harness.operations.attention.masks import NO_MASK, Integers, Visibility
from harness.operations.attention.problem import Problem

SHIFT = 4.0
SCORE_SHIFT = "score-shift"


def batch_invariance(trial: Trial) -> str | None:
    """A sequence alone gives the same bits as in a batch."""
    change = alone(trial.problem, trial.inputs)
    if change is None:
        return None
    # Gradients of a bias and of sinks are sums over the batch.
    by_entry = {tensor.name for tensor in trial.problem.tensors if tensor.axes[0] == "batch"}
    outputs = trial.run(change.problem, change.inputs)
    return other_outputs(trial, outputs, change.what, change.own[0], by_entry)


def key_order(trial: Trial) -> str | None:
    """Permuting keys together with all that they have does not change O and lse beyond both budgets."""
    p = trial.problem
    if p.mask != NO_MASK or p.dropout or any(term.depends_on_distance for term in p.terms):  # these depend on the order
        return None
    order = np.random.Generator(np.random.Philox(trial.problem.kv_len)).permutation(trial.problem.kv_len)
    of_terms = {tensor.name: tensor.axis("key") for term in p.terms for tensor in term.inputs(p)}
    of_keys = {"K": 2, "V": 2} | {name: axis for name, axis in of_terms.items() if axis is not None}
    moved = {name: np.ascontiguousarray(trial.inputs[name].take(order, axis)) for name, axis in of_keys.items()}
    other = {**trial.inputs, **moved}
    allowed_errors, errors_of_permuted = trial.begin_allowed(trial.inputs), trial.begin_allowed(other)
    permuted = trial.run(trial.problem, other)
    allowed, also_allowed = allowed_errors(trial.outputs), errors_of_permuted(permuted)
    for name, array in permuted.items():
        both = allowed[name] + also_allowed[name]
        if reason := apart(trial, name, trial.outputs[name], array, both, "keys in another order"):
            return reason
    return None


def score_shift(trial: Trial) -> str | None:
    """Adding a vector x to every key adds tau q.x to all scores of a row, so O is unchanged and lse changes by tau q.x.

    Does not apply to terms that change a shift, such as a cap, or with sinks, which would not be shifted.
    """
    problem = trial.problem
    if not all(term.keeps_shifts for term in problem.terms):
        return None
    K = on_grid(trial.inputs["K"])
    # Signs alternate, so that no single element dominates q.x.
    x = np.where(np.arange(problem.head_dim) % 2, -SHIFT, SHIFT)
    shifted = (K.astype(np.float64) + x).astype(K.dtype)
    before, after = {**trial.inputs, "K": K}, {**trial.inputs, "K": shifted}
    allowed_before, allowed_after = trial.begin_allowed(before), trial.begin_allowed(after)
    first, second = trial.run(problem, before), trial.run(problem, after)
    allowed, also_allowed = allowed_before(first), allowed_after(second)
    what = "all scores of a row moved by one number"
    reason = apart(trial, "O", first["O"], second["O"], allowed["O"] + also_allowed["O"], what)
    if reason is None and "lse" in first:
        moved = problem.tau * (trial.inputs["Q"].astype(np.float64) @ x)
        lse = first["lse"].astype(np.float64)
        expected = np.where(np.isneginf(lse), lse, lse + moved)  # -inf in rows that see no key
        reason = apart(trial, "lse", expected, second["lse"], allowed["lse"] + also_allowed["lse"], what)
    return reason


def value_sum(trial: Trial) -> str | None:
    """O is linear in V: O(V) + O(W) = O(V + W)."""
    V = on_grid(trial.inputs["V"])
    W = np.ascontiguousarray(np.roll(V, 1, axis=-1))
    total = (V.astype(np.float64) + W.astype(np.float64)).astype(V.dtype)
    inputs = [{**trial.inputs, "V": values} for values in (V, W, total)]
    errors_of_v, errors_of_sum = trial.begin_allowed(inputs[0]), trial.begin_allowed(inputs[2])
    outputs = [trial.run(trial.problem, each) for each in inputs]
    allowed_v = errors_of_v(outputs[0])["O"]
    allowed_w = np.roll(allowed_v, 1, axis=-1)  # each column of O has a budget of its own, and W has the columns of V
    allowed = allowed_v + allowed_w + errors_of_sum(outputs[2])["O"]
    of_v, of_w, of_sum = (made["O"].astype(np.float64) for made in outputs)
    return apart(trial, "O", of_v + of_w, of_sum, allowed, "the sum of two V")


def convex_hull(trial: Trial) -> str | None:
    """O lies between the smallest and the largest value that the row sees, within its budget.

    The value of a sink is 0, and so is that of a dropped weight. O is 0 if a term hides all keys of a row.
    """
    problem = trial.problem
    V = trial.inputs["V"].astype(np.float64).repeat(problem.group, axis=1)
    with np.errstate(invalid="ignore"):
        # One sequence at a time if the mask differs between sequences.
        runs = list(zip(*problem.spans))
        parts = [
            _extremes(values, *run) if problem.mask.is_run else _extremes_of_heads(values, problem, number)
            for number, (values, run) in enumerate(zip(np.split(V, len(runs)), runs))
        ]
        low, high = (np.concatenate(each) for each in zip(*parts))
        low, high = problem.kept_factor * low, problem.kept_factor * high
        may_hide = any(term.may_hide(trial.inputs) for term in problem.terms)
        if problem.sinks or problem.dropout or may_hide:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
    O = trial.outputs["O"].astype(np.float64)
    nearest = np.clip(O, low, high)
    # There is no hull of values with NaN; infinite values are ordinary bounds.
    no_hull = np.isnan(low) | np.isnan(high)
    allowed = np.where(no_hull, np.inf, trial.begin_allowed(trial.inputs)(trial.outputs)["O"])
    return apart(trial, "O", nearest, O, allowed, "the nearest mean of values that the row sees")


def _extremes(V: Float64Array, first: Integers, end: Integers) -> tuple[Float64Array, Float64Array]:
    """Return the minimum and maximum of the values first to end - 1 of each row, or 0 for empty runs; NaN propagates.

    V has shape (batch, heads, keys, d); the results have a row for each element of `first`. Extremes of runs of 2^k
    keys are computed once, and any run is the union of two of them.
    """
    length = end - first
    low, high = (np.zeros((*V.shape[:2], len(first), V.shape[3])) for _ in range(2))
    run_low = run_high = V
    size = 1
    while size <= V.shape[2]:
        rows = np.flatnonzero((length >= size) & (length < 2 * size))
        one, other = first[rows], end[rows] - size
        low[:, :, rows] = np.minimum(run_low[:, :, one], run_low[:, :, other])
        high[:, :, rows] = np.maximum(run_high[:, :, one], run_high[:, :, other])
        run_low = np.minimum(run_low[:, :, :-size], run_low[:, :, size:])
        run_high = np.maximum(run_high[:, :, :-size], run_high[:, :, size:])
        size *= 2
    return low, high


def _extremes_of_heads(V: Float64Array, problem: Problem, sequence: int) -> tuple[Float64Array, Float64Array]:
    """Return `_extremes` under a mask whose rows do not see runs, one head at a time if its heads differ."""
    if not problem.mask.tells_heads_apart:
        return _extremes_seen(V, problem.seen(sequence))
    heads = [_extremes_seen(V[:, [head]], problem.seen(sequence, head)) for head in range(problem.heads)]
    low, high = (np.concatenate(each, axis=1) for each in zip(*heads))
    return low, high


def _extremes_seen(V: Float64Array, seen: Visibility) -> tuple[Float64Array, Float64Array]:
    """Return `_extremes` of the values that each row of `seen`, (rows, keys), selects."""
    low, high = (np.zeros((*V.shape[:2], len(seen), V.shape[3])) for _ in range(2))
    for row in np.flatnonzero(seen.any(axis=1)):
        values = V[:, :, seen[row]]
        low[:, :, row], high[:, :, row] = values.min(axis=2), values.max(axis=2)
    return low, high


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        DETERMINISM,
        invariance_of_batches(batch_invariance),
        Property("key-order", "if keys are reordered with their values and biases, O and lse do not change", key_order),
        Property(
            SCORE_SHIFT,
            "if a constant is added to all scores of a row, O does not change, and lse changes by it",
            score_shift,
        ),
        Property("value-sum", "O(V) + O(W) = O(V + W)", value_sum),
        Property("convex-hull", "O lies between the extremes of the values that its row sees", convex_hull),
    )
}
"""Every property by name. To add one, write a function and add a line."""
