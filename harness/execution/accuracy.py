"""Holds a kernel's outputs against the oracle's answer, element by element, each with its own budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.operation import Tolerance
from harness.model.problem import INPUT, OUTPUT, Tensor

Float64Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FROM_NOBODY = "with bits of memory that nobody wrote"
CAUSES = (
    ": shared memory or scratch was read before it was written, or before an asynchronous copy was waited for; "
    "--sanitize names the line"
)


@dataclass(frozen=True)
class Element:
    """One element of an output, beside what it should be."""

    output: str
    """The output's name."""
    index: tuple[int, ...]
    """Along each of its axes."""
    axes: tuple[str, ...]
    """What these are called."""
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
        return ", ".join(f"{axis} {i}" for axis, i in zip(self.axes, self.index))


@dataclass(frozen=True)
class OutputAccuracy:
    """What the comparison of one output with the oracle's answer came to."""

    reason: str | None
    """What is wrong first, and where; None where nothing is."""
    max_abs_error: float
    """Largest |output - answer|; NaN where an element is NaN that must not be."""
    error_over_budget: float
    """Largest ratio of error to budget; above 1 is wrong. inf where nothing but the exact answer will do."""
    error_over_expected: float
    """Largest ratio of error to what is expected of a correct kernel; above 1 is suspicious."""
    worst: Element | None
    """The element with the largest ratio of error to budget (NaN is worse than any); None where shapes differ."""
    first_wrong: Element | None
    """The first element, in the order of memory, that is beyond its budget; None where none is or shapes differ."""
    wrong: Mask
    """Where it is beyond its budget. Shaped as the output."""
    unwritten: Mask
    """Where no thread stored anything, or seems to have: where that was not looked into, what `untouched` says."""
    over_budget: Float64Array
    """Error over budget, element by element, see `error_over_budget`. Shaped as the output; NaN where shapes differ."""


@dataclass(frozen=True)
class Accuracy:
    """What the comparison of a kernel's outputs with the oracle's came to, by output, the main one first."""

    by_output: Mapping[str, OutputAccuracy]

    @property
    def main(self) -> OutputAccuracy:
        """Of the main output."""
        return next(iter(self.by_output.values()))

    @property
    def guilty(self) -> OutputAccuracy:
        """Of the first output that is wrong, or of the main one."""
        return next((each for each in self.by_output.values() if each.reason is not None), self.main)

    @property
    def reason(self) -> str | None:
        """What is wrong first, and where; None where it passed."""
        return self.guilty.reason

    @property
    def passed(self) -> bool:
        """Every element is written and within its budget."""
        return self.reason is None

    @property
    def error_over_budget(self) -> float:
        """The largest over all outputs; NaN is worse than anything."""
        return worst_ratio(each.error_over_budget for each in self.by_output.values())

    @property
    def error_over_expected(self) -> float:
        """The largest over all outputs."""
        return worst_ratio(each.error_over_expected for each in self.by_output.values())

    @property
    def suspicious(self) -> bool:
        """Within the budget, but further off than is expected of a correct kernel."""
        return self.passed and self.error_over_expected > 1


def worst_ratio(ratios: Iterable[float]) -> float:
    """The largest one; NaN is worse than anything."""
    return max(ratios, key=lambda ratio: math.inf if math.isnan(ratio) else ratio)


def measure_accuracy(
    tensors: Sequence[Tensor],
    outputs: Mapping[str, np.ndarray],
    answer: Mapping[str, Float64Array],
    tolerance: Mapping[str, Tolerance],
    unwritten: Mapping[str, Mask] | None = None,
) -> Accuracy:
    """Hold a kernel's outputs against the oracle's answer: all that are not optional, and the others that it stores.

    `unwritten`: of outputs that look so, where no thread stored anything; None where nobody looked.

    Passing needs `error <= allowed` at every element, so NaN fails. Where 0 is allowed, nothing but the answer, rounded
    to nearest, will do. Where the answer is not finite (inputs with NaN or inf), a NaN has to come out as NaN, an
    infinity as itself or as NaN.
    """
    compared = [
        tensor for tensor in tensors if tensor.role == OUTPUT or (tensor.name in outputs and tensor.role != INPUT)
    ]
    return Accuracy(
        {
            tensor.name: _compare(tensor, outputs[tensor.name], answer[tensor.name], tolerance[tensor.name], unwritten)
            for tensor in compared
        }
    )


def _compare(
    tensor: Tensor,
    output: np.ndarray,
    answer: Float64Array,
    tolerance: Tolerance,
    unwritten: Mapping[str, Mask] | None,
) -> OutputAccuracy:
    name, allowed, expected = tensor.name, tolerance.allowed, tolerance.expected
    if output.shape != answer.shape:
        shapes = f"{name} has shape {output.shape} instead of {answer.shape}"
        everywhere, nowhere = np.ones(output.shape, np.bool_), np.zeros(output.shape, np.bool_)
        unknown = np.full(output.shape, math.nan)
        return OutputAccuracy(shapes, math.nan, math.nan, math.nan, None, None, everywhere, nowhere, unknown)
    got = output.astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(got - answer)
        same = (got == answer) | np.isposinf(allowed)
        no_number = np.isnan(got)
        if no_number.any():
            same |= no_number & ~np.isfinite(answer) & (allowed != 0)
        exact = allowed == 0
        if exact.any():
            same |= exact & (output == answer.astype(output.dtype))
        # inf - inf is NaN, and a NaN that has to be there is no error.
        error = np.where(same & ~np.isfinite(error), 0.0, error)
        ratio = np.where(same, 0.0, error / allowed)
        expected_ratio = np.where(same, 0.0, error / expected)
        wrong = ~same & ~(error <= allowed)

    def element(flat_index: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(flat_index, answer.shape))
        return Element(name, index, tensor.axes, float(got[index]), float(answer[index]), float(allowed[index]))

    # np.max and np.argmax let NaN through; np.nanmax would make the worst output look perfect.
    worst = element(int(np.argmax(ratio)))
    first_wrong = element(int(np.argmax(wrong))) if wrong.any() else None
    nobody = untouched(output) if unwritten is None else unwritten.get(name)
    if nobody is None:
        nobody = np.zeros(output.shape, np.bool_)
    reason = None
    if first_wrong is not None:
        reason = _explain(name, untouched(output), nobody, unwritten is not None, got, ratio, wrong, element)
    return OutputAccuracy(
        reason,
        float(np.max(error)),
        float(np.max(ratio)),
        float(np.max(expected_ratio)),
        worst,
        first_wrong,
        wrong,
        nobody,
        ratio,
    )


def _explain(
    name: str,
    as_given: Mask,
    nobody: Mask,
    looked: bool,
    got: Float64Array,
    ratio: Float64Array,
    wrong: Mask,
    element: Callable[[int], Element],
) -> str:
    """One line on what is worst: never written, then written with garbage, NaN, the largest error over budget.

    `as_given`: where the output is what it was before the run. `nobody`: where no thread wrote, if one has `looked`.
    """
    never = "were never written" if looked else f"were never written, or {FROM_NOBODY}"
    cases = ((nobody, never, ""), (as_given, f"were written {FROM_NOBODY}", CAUSES), (np.isnan(got), "are NaN", ""))
    for where, what, causes in cases:
        if (mask := where & wrong).any():
            first = element(int(np.argmax(mask)))
            return f"{int(mask.sum()):,} of {mask.size:,} elements of {name} {what}, the first at {first.place}{causes}"
    worst = element(int(np.argmax(np.where(wrong, ratio, -1.0))))
    over = ratio[worst.index]
    if np.isfinite(over):
        how = f"{over:.3g} x budget"
    else:
        how = "only the exact answer will do here" if np.isfinite(worst.answer) else "it has to be NaN or infinite"
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are off by more than their budget, "
        f"the worst at {worst.place}: {worst.got:.6g} instead of {worst.answer:.6g} "
        f"({how})"
    )


def untouched(output: np.ndarray) -> Mask:
    """Where every byte is still 0xFF: a NaN that outputs start with, and scratch and an emulator's shared memory, too.

    No arithmetic makes it of anything else.
    """
    bits = np.ascontiguousarray(output).view(np.dtype(f"u{output.dtype.itemsize}"))
    return np.asarray(bits == np.iinfo(bits.dtype).max)


def all_zero(output: np.ndarray) -> Mask:
    """Where every byte is 0: what nobody wrote, of an output that started with zeros."""
    return np.asarray(np.ascontiguousarray(output).view(f"u{output.dtype.itemsize}") == 0)
