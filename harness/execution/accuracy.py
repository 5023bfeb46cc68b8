"""Holds a kernel's outputs against the oracle's answer, element by element, each with its own budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.operations.attention.error_budget import Budget
from harness.operations.attention.oracle import Reference

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

AXES = ("batch", "head", "row", "column")


@dataclass(frozen=True)
class Element:
    """One element of an output, beside what it should be."""

    output: str
    """`O` or `lse`."""
    index: tuple[int, ...]
    """Batch, head, row and, in O, column."""
    got: float
    """What the kernel stored."""
    answer: float
    """The oracle's."""
    allowed: float
    """The error that it may have; 0 where nothing but the answer, rounded, will do. NaN where the answer is not finite,
    which has a contract of its own."""

    @property
    def place(self) -> str:
        """Such as `batch 0, head 1, row 6, column 2`."""
        return ", ".join(f"{axis} {i}" for axis, i in zip(AXES, self.index))


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
    error_over_expected: float
    """Largest ratio of error to what is expected of a correct kernel, in O; above 1 is suspicious."""
    lse_max_abs_error: float | None
    """The same for lse, None where the variant stores none."""
    lse_error_over_budget: float | None
    lse_error_over_expected: float | None
    worst: Element | None
    """The element with the largest ratio of error to budget (NaN is worse than any), in O unless only lse is wrong;
    None where shapes differ."""
    first_wrong: Element | None
    """The first element, in the order of memory, that is beyond its budget; None where it passed or shapes differ."""
    wrong: Mapping[str, Mask]
    """For each output that was compared: where it is beyond its budget. Shaped as the output."""

    @property
    def suspicious(self) -> bool:
        """Within the budget, but further off than is expected of a correct kernel."""
        return self.passed and max(self.error_over_expected, self.lse_error_over_expected or 0.0) > 1


def measure_accuracy(outputs: Mapping[str, np.ndarray], reference: Reference, budget: Budget) -> Accuracy:
    """Hold outputs `O` and, where it is there, `lse` against the oracle's answer.

    Passing needs `error <= budget` at every element, so NaN fails. Where the row sees no key, and where
    `budget.exact` says so, nothing but the answer, rounded to nearest, will do. Where the answer is not finite (inputs
    with NaN or inf), a NaN has to come out as NaN, an infinity as itself or as NaN.
    """
    o = _compare("O", outputs["O"], reference.O, budget.O, budget.expected_O)
    lse = None
    if "lse" in outputs:
        lse = _compare("lse", outputs["lse"], reference.lse, budget.lse, budget.expected_lse)
    reason = o.reason or (lse.reason if lse else None)
    guilty = lse if lse and lse.reason and not o.reason else o
    return Accuracy(
        passed=reason is None,
        reason=reason,
        max_abs_error=o.max_abs_error,
        error_over_budget=o.error_over_budget,
        error_over_expected=o.error_over_expected,
        lse_max_abs_error=lse.max_abs_error if lse else None,
        lse_error_over_budget=lse.error_over_budget if lse else None,
        lse_error_over_expected=lse.error_over_expected if lse else None,
        worst=guilty.worst,
        first_wrong=guilty.first_wrong,
        wrong={"O": o.wrong} | ({"lse": lse.wrong} if lse else {}),
    )


@dataclass(frozen=True)
class _Difference:
    reason: str | None
    max_abs_error: float
    error_over_budget: float
    error_over_expected: float
    worst: Element | None
    first_wrong: Element | None
    wrong: Mask


def _compare(
    name: str, output: np.ndarray, answer: Float64Array, allowed: Float64Array, expected: Float64Array
) -> _Difference:
    if output.shape != answer.shape:
        shapes = f"{name} has shape {output.shape} instead of {answer.shape}"
        return _Difference(shapes, math.nan, math.nan, math.nan, None, None, np.ones(output.shape, np.bool_))
    got = output.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got - answer)
        same = (got == answer) | (np.isnan(got) & ~np.isfinite(answer)) | np.isposinf(allowed)
        same |= (allowed == 0) & (output == answer.astype(output.dtype))
        # inf - inf is NaN, and a NaN that has to be there is no error.
        error = np.where(same & ~np.isfinite(error), 0.0, error)
        ratio = np.where(same, 0.0, error / allowed)
        expected_ratio = np.where(same, 0.0, error / expected)
        wrong = ~same & ~(error <= allowed)

    def element(flat_index: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(flat_index, answer.shape))
        return Element(name, index, float(got[index]), float(answer[index]), float(allowed[index]))

    # np.max and np.argmax let NaN through; np.nanmax would make the worst output look perfect.
    worst = element(int(np.argmax(ratio)))
    first_wrong = element(int(np.argmax(wrong))) if wrong.any() else None
    reason = _explain(name, output, got, ratio, wrong, element) if wrong.any() else None
    return _Difference(
        reason, float(np.max(error)), float(np.max(ratio)), float(np.max(expected_ratio)), worst, first_wrong, wrong
    )


def _explain(
    name: str,
    output: np.ndarray,
    got: Float64Array,
    ratio: Float64Array,
    wrong: Mask,
    element: Callable[[int], Element],
) -> str:
    """One line on what is worst: never written, then NaN, then the largest error over budget."""
    unwritten, not_a_number = untouched(output) & wrong, np.isnan(got) & wrong
    for mask, what in ((unwritten, "were never written"), (not_a_number, "are NaN")):
        if mask.any():
            first = element(int(np.argmax(mask)))
            return f"{int(mask.sum()):,} of {mask.size:,} elements of {name} {what}, the first at {first.place}"
    worst = element(int(np.argmax(np.where(wrong, ratio, -1.0))))
    over = ratio[worst.index]
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are off by more than their budget, "
        f"the worst at {worst.place}: {worst.got:.6g} instead of {worst.answer:.6g} "
        f"({f'{over:.3g} x budget' if np.isfinite(over) else 'only the exact answer will do here'})"
    )


def untouched(output: np.ndarray) -> Mask:
    """Where every byte is still 0xFF, the NaN that outputs start with and that no arithmetic makes."""
    bits = np.ascontiguousarray(output).view(np.dtype(f"u{output.dtype.itemsize}"))
    return np.asarray(bits == np.iinfo(bits.dtype).max)
