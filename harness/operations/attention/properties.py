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

from harness.model.property import Arrays, Property, Trial
from harness.model.regime import NUMPY_DTYPES
from harness.operations.attention.masks import NO_MASK, Integers

# The oracle and the budget are imported where they are asked: the command line's help names the properties, too.

Float64Array = npt.NDArray[np.float64]

GRID = 8.0
"""Where sums of inputs have to be exact, elements are eighths of at most 8 (`_on_grid`): 8 bits hold their sums."""
LARGEST_ON_GRID = 8.0
SHIFT = 4.0


def determinism(trial: Trial) -> str | None:
    """The same inputs give the same bits once more."""
    again = trial.run(trial.problem, trial.inputs)
    for name, first in trial.outputs.items():
        if reason := _other_bits(name, first, again[name], "a second run on the same inputs"):
            return reason
    return None


def batch_invariance(trial: Trial) -> str | None:
    """A sequence gives the same bits alone as in a batch with others."""
    if trial.problem.batch == 1:
        return None
    last = trial.problem.batch - 1
    alone = trial.run(
        dataclasses.replace(trial.problem, batch=1),
        {n: np.ascontiguousarray(a[last:]) for n, a in trial.inputs.items()},
    )
    for name, together in trial.outputs.items():
        as_alone = together.copy()
        as_alone[last:] = alone[name]
        if reason := _other_bits(name, together, as_alone, f"batch entry {last} on its own"):
            return reason
    return None


def key_order(trial: Trial) -> str | None:
    """Keys, with their values, in another order: the same O and lse, as far as both budgets allow."""
    if trial.problem.mask != NO_MASK:  # the order decides which keys a row sees
        return None
    order = np.random.Generator(np.random.Philox(trial.problem.kv_len)).permutation(trial.problem.kv_len)
    other = {name: a if name == "Q" else np.ascontiguousarray(a[:, :, order]) for name, a in trial.inputs.items()}
    permuted = trial.run(trial.problem, other)
    allowed, also_allowed = _allowed(trial, trial.inputs, trial.outputs), _allowed(trial, other, permuted)
    for name, array in permuted.items():
        both = allowed[name] + also_allowed[name]
        if reason := _apart(name, trial.outputs[name], array, both, "keys in another order"):
            return reason
    return None


def score_shift(trial: Trial) -> str | None:
    """One vector x added to every key adds tau q.x to all scores of a row: O stays, lse moves by that."""
    problem = trial.problem
    K = _on_grid(trial.inputs["K"])
    # Signs in turn, so that no element of the sum of q.x stands for all.
    x = np.where(np.arange(problem.head_dim) % 2, -SHIFT, SHIFT)
    shifted = (K.astype(np.float64) + x).astype(K.dtype)
    before, after = {**trial.inputs, "K": K}, {**trial.inputs, "K": shifted}
    first, second = trial.run(problem, before), trial.run(problem, after)
    allowed, also_allowed = _allowed(trial, before, first), _allowed(trial, after, second)
    what = "all scores of a row moved by one number"
    reason = _apart("O", first["O"], second["O"], allowed["O"] + also_allowed["O"], what)
    if reason is None and "lse" in first:
        moved = problem.tau * (trial.inputs["Q"].astype(np.float64) @ x)
        lse = first["lse"].astype(np.float64)
        expected = np.where(np.isneginf(lse), lse, lse + moved)  # a row that sees no key stays where it is
        reason = _apart("lse", expected, second["lse"], allowed["lse"] + also_allowed["lse"], what)
    return reason


def value_sum(trial: Trial) -> str | None:
    """O is linear in V: O(V) + O(W) = O(V + W)."""
    V = _on_grid(trial.inputs["V"])
    W = np.ascontiguousarray(np.roll(V, 1, axis=-1))
    total = (V.astype(np.float64) + W.astype(np.float64)).astype(V.dtype)
    inputs = [{**trial.inputs, "V": values} for values in (V, W, total)]
    outputs = [trial.run(trial.problem, each) for each in inputs]
    allowed = sum(_allowed(trial, each, made)["O"] for each, made in zip(inputs, outputs))
    of_v, of_w, of_sum = (made["O"].astype(np.float64) for made in outputs)
    return _apart("O", of_v + of_w, of_sum, np.asarray(allowed), "the sum of two V")


def convex_hull(trial: Trial) -> str | None:
    """O lies between the smallest and the largest value that the row sees, as far as its budget allows."""
    problem = trial.problem
    V = trial.inputs["V"].astype(np.float64).repeat(problem.group, axis=1)
    with np.errstate(invalid="ignore"):
        low, high = _extremes(V, *problem.span(np.arange(problem.q_len)))
    O = trial.outputs["O"].astype(np.float64)
    nearest = np.clip(O, low, high)
    # Nothing lies between values one of which is NaN; an infinite one is an end like any other.
    no_hull = np.isnan(low) | np.isnan(high)
    allowed = np.where(no_hull, np.inf, _allowed(trial, trial.inputs, trial.outputs)["O"])
    return _apart("O", nearest, O, allowed, "the nearest mean of values that the row sees")


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


PROPERTIES: dict[str, Property] = {
    each.name: each
    for each in (
        Property("determinism", "the same inputs once more: the same bits", determinism, same_bits=True),
        Property(
            "batch-invariance",
            "a sequence alone, without the others of its batch: the same bits",
            batch_invariance,
            same_bits=True,
        ),
        Property("key-order", "keys with their values in another order: O and lse stay", key_order),
        Property("score-shift", "one number added to all scores of a row: O stays, lse moves by it", score_shift),
        Property("value-sum", "O(V) + O(W) = O(V + W)", value_sum),
        Property("convex-hull", "O lies between the extremes of the values that the row sees", convex_hull),
    )
}
"""Every property by name. A new one is a function and a line here."""


def _on_grid(array: np.ndarray) -> np.ndarray:
    """The nearest eighths of at most 8; NaN becomes 0. Sums of two are exact in every dtype here."""
    values = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=LARGEST_ON_GRID, neginf=-LARGEST_ON_GRID)
    grid = np.clip(np.round(values * GRID) / GRID, -LARGEST_ON_GRID, LARGEST_ON_GRID)
    assert array.dtype in NUMPY_DTYPES.values()
    return np.ascontiguousarray(grid.astype(array.dtype))


def _allowed(trial: Trial, inputs: Arrays, outputs: Arrays) -> dict[str, Float64Array]:
    """How far off each element of the outputs for `inputs` may be; at least its own rounding."""
    from harness.operations.attention.error_budget import error_budget
    from harness.operations.attention.oracle import attention
    from harness.operations.attention.rounding import UNIT_ROUNDOFF

    budget = error_budget(trial.problem, inputs, attention(trial.problem, inputs), trial.numerics)
    units = {"O": UNIT_ROUNDOFF[trial.problem.dtype], "lse": UNIT_ROUNDOFF["float32"]}
    # A budget of 0 is not one of no error: it means the answer, rounded.
    return {
        name: np.fmax(getattr(budget, name), units[name] * np.abs(output.astype(np.float64)))
        for name, output in outputs.items()
    }


def _other_bits(name: str, first: np.ndarray, second: np.ndarray, what: str) -> str | None:
    bits = np.dtype(f"u{first.dtype.itemsize}")
    wrong = np.ascontiguousarray(first).view(bits) != np.ascontiguousarray(second).view(bits)
    # Which NaN it is may depend on anything.
    wrong &= ~(np.isnan(first.astype(np.float64)) & np.isnan(second.astype(np.float64)))
    return _described(name, wrong, first, second, f"other bits than {what}")


def _apart(name: str, first: np.ndarray, second: np.ndarray, allowed: Float64Array, what: str) -> str | None:
    one, other = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore"):
        # Where the answer is not finite, or may be anything, there is nothing to compare.
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        wrong = ~(np.abs(one - other) <= allowed) & ~same & np.isfinite(allowed)
    return _described(name, wrong, one, other, f"further from {what} than their budgets allow")


def _described(name: str, wrong: npt.NDArray[np.bool_], first: np.ndarray, second: np.ndarray, what: str) -> str | None:
    if not wrong.any():
        return None
    where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = ", ".join(f"{axis} {int(i)}" for axis, i in zip(("batch", "head", "row", "column"), where))
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are {what}, the first at {place}: "
        f"{float(first[where]):.9g} and {float(second[where]):.9g}"
    )
