"""Holds a kernel's outputs against the oracle's answer, element by element, each with its own budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measure.error_budget import Budget
from harness.oracle import Reference

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Accuracy:
    """What the comparison of a kernel's outputs with the oracle's came to."""

    passed: bool
    """Every element is written and within its budget."""
    reason: str | None
    """What is wrong first, and where; None where it passed."""
    max_abs_error: float
    """Largest |output - answer| in O; NaN where an element is NaN that must not be."""
    error_over_budget: float
    """Largest ratio of error to budget in O; above 1 is wrong. inf where nothing but the exact answer will do."""
    lse_max_abs_error: float | None
    """The same for lse, None where the variant stores none."""
    lse_error_over_budget: float | None


def measure_accuracy(outputs: Mapping[str, np.ndarray], reference: Reference, budget: Budget) -> Accuracy:
    """Hold outputs `O` and, where it is there, `lse` against the oracle's answer.

    Passing needs `error <= budget` at every element, so NaN fails. Where the answer itself is not finite (inputs
    with NaN or inf) or the row sees no key, the output has to be that very answer.
    """
    o = _compare("O", outputs["O"], reference.O, budget.O)
    lse = _compare("lse", outputs["lse"], reference.lse, budget.lse) if "lse" in outputs else None
    reason = o.reason or (lse.reason if lse else None)
    return Accuracy(
        passed=reason is None,
        reason=reason,
        max_abs_error=o.max_abs_error,
        error_over_budget=o.error_over_budget,
        lse_max_abs_error=lse.max_abs_error if lse else None,
        lse_error_over_budget=lse.error_over_budget if lse else None,
    )


@dataclass(frozen=True)
class _Difference:
    reason: str | None
    max_abs_error: float
    error_over_budget: float


def _compare(name: str, output: np.ndarray, expected: Float64Array, allowed: Float64Array) -> _Difference:
    if output.shape != expected.shape:
        return _Difference(f"{name} has shape {output.shape} instead of {expected.shape}", math.nan, math.nan)
    got = output.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got - expected)
        same = (got == expected) | (np.isnan(got) & np.isnan(expected))
        # inf - inf is NaN, and a NaN that has to be there is no error.
        error = np.where(same, 0.0, error)
        ratio = np.where(same, 0.0, error / allowed)
        wrong = ~same & ~(error <= allowed)
    # np.max lets NaN through; np.nanmax would make the worst output look perfect.
    largest, worst = float(np.max(error)), float(np.max(ratio))
    if not wrong.any():
        return _Difference(None, largest, worst)
    return _Difference(_explain(name, output, got, expected, error, ratio, wrong), largest, worst)


def _explain(
    name: str,
    output: np.ndarray,
    got: Float64Array,
    expected: Float64Array,
    error: Float64Array,
    ratio: Float64Array,
    wrong: npt.NDArray[np.bool_],
) -> str:
    """One line on what is worst: never written, then NaN, then the largest error over budget."""
    unwritten = _untouched(output) & wrong
    not_a_number = np.isnan(got) & wrong
    for mask, what in ((unwritten, "were never written"), (not_a_number, "are NaN")):
        if mask.any():
            first = np.unravel_index(int(np.argmax(mask)), mask.shape)
            return f"{int(mask.sum()):,} of {mask.size:,} elements of {name} {what}, the first at {_place(first)}"
    worst = np.unravel_index(int(np.argmax(np.where(wrong, ratio, -1.0))), ratio.shape)
    over = f"{ratio[worst]:.3g} x budget" if np.isfinite(ratio[worst]) else "only the exact answer will do here"
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are off by more than their budget, "
        f"the worst at {_place(worst)}: {got[worst]:.6g} instead of {expected[worst]:.6g} ({over})"
    )


def _place(index: tuple[np.intp, ...]) -> str:
    names = ("batch", "head", "row", "column")
    return ", ".join(f"{axis} {int(i)}" for axis, i in zip(names, index))


def _untouched(output: np.ndarray) -> npt.NDArray[np.bool_]:
    """Where every byte is still 0xFF, the NaN that outputs start with and that no arithmetic makes."""
    bits = np.ascontiguousarray(output).view(np.dtype(f"u{output.dtype.itemsize}"))
    return np.asarray(bits == np.iinfo(bits.dtype).max)
