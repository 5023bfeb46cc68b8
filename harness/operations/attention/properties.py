"""What must hold between several runs of one kernel, or within one, without knowing the answer.

Each property is a function of a `Trial`. It returns None, or what does not hold and where. Where two runs round on
their own, each may be off by its own budget; where the very same bits must come, they must.

The budgets come from the oracle's answer, but the answer itself is not used: a mistake that the oracle and a kernel
share would show here.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import UNIT_ROUNDOFF
from harness.model.cases.property import DETERMINISM, Arrays, Property, Trial, apart, on_grid, other_bits
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.masks import NO_MASK, Integers, Visibility
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]

SHIFT = 4.0
SCORE_SHIFT = "score-shift"


def batch_invariance(trial: Trial) -> str | None:
    """A sequence gives the same bits alone as in a batch; the first one, where its number says what drops out."""
    if trial.problem.batch == 1:
        return None
    chosen = 0 if trial.problem.dropout else trial.problem.batch - 1
    own = slice(chosen, chosen + 1)
    of_batch = {tensor.name for tensor in trial.problem.inputs if tensor.axes[0] == "batch"}
    alone = trial.run(
        dataclasses.replace(trial.problem, batch=1, mask=trial.problem.mask.of_sequence(chosen)),
        {n: np.ascontiguousarray(a[own]) if n in of_batch else a for n, a in trial.inputs.items()},
    )
    for name, together in trial.outputs.items():
        as_alone = together.copy()
        as_alone[own] = alone[name]
        if reason := other_bits(trial, name, together, as_alone, f"batch entry {chosen} on its own"):
            return reason
    return None


def key_order(trial: Trial) -> str | None:
    """Keys, with their values, in another order: the same O and lse, as far as both budgets allow."""
    p = trial.problem
    if (
        p.mask != NO_MASK or p.alibi or p.dropout
    ):  # the order decides which keys a row sees, how far off, what drops out
        return None
    order = np.random.Generator(np.random.Philox(trial.problem.kv_len)).permutation(trial.problem.kv_len)
    moved = {name: np.ascontiguousarray(trial.inputs[name][:, :, order]) for name in "KV"}
    other = {**trial.inputs, **moved}
    permuted = trial.run(trial.problem, other)
    allowed, also_allowed = _allowed(trial, trial.inputs, trial.outputs), _allowed(trial, other, permuted)
    for name, array in permuted.items():
        both = allowed[name] + also_allowed[name]
        if reason := apart(trial, name, trial.outputs[name], array, both, "keys in another order"):
            return reason
    return None


def score_shift(trial: Trial) -> str | None:
    """One vector x added to every key adds tau q.x to all scores of a row: O stays, lse moves by that.

    Not where scores are capped, nor where there is a sink, which stays where it is.
    """
    problem = trial.problem
    if problem.softcap is not None or problem.sinks:
        return None
    K = on_grid(trial.inputs["K"])
    # Signs in turn, so that no element of the sum of q.x stands for all.
    x = np.where(np.arange(problem.head_dim) % 2, -SHIFT, SHIFT)
    shifted = (K.astype(np.float64) + x).astype(K.dtype)
    before, after = {**trial.inputs, "K": K}, {**trial.inputs, "K": shifted}
    first, second = trial.run(problem, before), trial.run(problem, after)
    allowed, also_allowed = _allowed(trial, before, first), _allowed(trial, after, second)
    what = "all scores of a row moved by one number"
    reason = apart(trial, "O", first["O"], second["O"], allowed["O"] + also_allowed["O"], what)
    if reason is None and "lse" in first:
        moved = problem.tau * (trial.inputs["Q"].astype(np.float64) @ x)
        lse = first["lse"].astype(np.float64)
        expected = np.where(np.isneginf(lse), lse, lse + moved)  # a row that sees no key stays where it is
        reason = apart(trial, "lse", expected, second["lse"], allowed["lse"] + also_allowed["lse"], what)
    return reason


def value_sum(trial: Trial) -> str | None:
    """O is linear in V: O(V) + O(W) = O(V + W)."""
    V = on_grid(trial.inputs["V"])
    W = np.ascontiguousarray(np.roll(V, 1, axis=-1))
    total = (V.astype(np.float64) + W.astype(np.float64)).astype(V.dtype)
    inputs = [{**trial.inputs, "V": values} for values in (V, W, total)]
    outputs = [trial.run(trial.problem, each) for each in inputs]
    allowed_v = _allowed(trial, inputs[0], outputs[0])["O"]
    allowed_w = np.roll(allowed_v, 1, axis=-1)  # each column of O has a budget of its own, and W has the columns of V
    allowed = allowed_v + allowed_w + _allowed(trial, inputs[2], outputs[2])["O"]
    of_v, of_w, of_sum = (made["O"].astype(np.float64) for made in outputs)
    return apart(trial, "O", of_v + of_w, of_sum, allowed, "the sum of two V")


def convex_hull(trial: Trial) -> str | None:
    """O lies between the smallest and the largest value that the row sees, as far as its budget allows.

    A sink's value is 0, and so is one whose weight drops out, as others grow.
    """
    problem = trial.problem
    V = trial.inputs["V"].astype(np.float64).repeat(problem.group, axis=1)
    with np.errstate(invalid="ignore"):
        # One sequence at a time where the mask tells them apart, else all at once.
        runs = list(zip(*problem.spans))
        parts = [
            _extremes(values, *run) if problem.mask.is_run else _extremes_of_heads(values, problem, number)
            for number, (values, run) in enumerate(zip(np.split(V, len(runs)), runs))
        ]
        low, high = (np.concatenate(each) for each in zip(*parts))
        low, high = problem.kept_factor * low, problem.kept_factor * high
        if problem.sinks or problem.dropout:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
    O = trial.outputs["O"].astype(np.float64)
    nearest = np.clip(O, low, high)
    # Nothing lies between values one of which is NaN; an infinite one is an end like any other.
    no_hull = np.isnan(low) | np.isnan(high)
    allowed = np.where(no_hull, np.inf, _allowed(trial, trial.inputs, trial.outputs)["O"])
    return apart(trial, "O", nearest, O, allowed, "the nearest mean of values that the row sees")


def _extremes(V: Float64Array, first: Integers, end: Integers) -> tuple[Float64Array, Float64Array]:
    """The smallest and the largest of the values first to end - 1 of each row, 0 where there are none; NaN spreads.

    V has shape (batch, heads, keys, d); the result has a row for each element of `first`. Runs of 2^k keys are
    compared once, and two that overlap make any run.
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
    """`_extremes` under a mask that is no run: one head at a time where heads have different masks."""
    if not problem.mask.tells_heads_apart:
        return _extremes_seen(V, problem.seen(sequence))
    heads = [_extremes_seen(V[:, [head]], problem.seen(sequence, head)) for head in range(problem.heads)]
    low, high = (np.concatenate(each, axis=1) for each in zip(*heads))
    return low, high


def _extremes_seen(V: Float64Array, seen: Visibility) -> tuple[Float64Array, Float64Array]:
    """`_extremes` of the values that row i of `seen`, (rows, keys), selects."""
    low, high = (np.zeros((*V.shape[:2], len(seen), V.shape[3])) for _ in range(2))
    for row in np.flatnonzero(seen.any(axis=1)):
        values = V[:, :, seen[row]]
        low[:, :, row], high[:, :, row] = values.min(axis=2), values.max(axis=2)
    return low, high


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        DETERMINISM,
        Property(
            "batch-invariance",
            "a sequence alone, without the others of its batch: the same bits",
            batch_invariance,
            same_bits=True,
        ),
        Property("key-order", "keys with their values in another order: O and lse stay", key_order),
        Property(SCORE_SHIFT, "one number added to all scores of a row: O stays, lse moves by it", score_shift),
        Property("value-sum", "O(V) + O(W) = O(V + W)", value_sum),
        Property("convex-hull", "O lies between the extremes of the values that the row sees", convex_hull),
    )
}
"""Every property by name. A new one is a function and a line here."""


def _allowed(trial: Trial, inputs: Arrays, outputs: Arrays) -> dict[str, Float64Array]:
    """How far off each element of the outputs for `inputs` may be; at least its own rounding."""
    budget = error_budget(trial.problem, inputs, attention(trial.problem, inputs), trial.numerics)
    units = {"O": UNIT_ROUNDOFF[trial.problem.dtype], "lse": UNIT_ROUNDOFF["float32"]}
    # A budget of 0 is not one of no error: it means the answer, rounded.
    return {
        name: np.fmax(budget[name].allowed, units[name] * np.abs(output.astype(np.float64)))
        for name, output in outputs.items()
    }
