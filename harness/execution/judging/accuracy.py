"""Compares a kernel's outputs with the oracle's answer, element by element, each against its own error budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.execution.judging.exact_output import ExactOutput
from harness.model.array_types import Float64Array, Mask
from harness.model.operation import Tolerance
from harness.model.problem import IN_OUT, INPUT, OUTPUT, Tensor

STALE = "with bits of unwritten memory"
CAUSES = ": shared memory or scratch was read before it was written, or before an asynchronous copy was waited for"
SANITIZE_HINT = "; --sanitize names the line"
"""Advice in a reason; pointless if the sanitizer ran."""

ZERO_FOR_NAN = "the reference has NaN there, the variant 0: a test such as `l > 0` is false for NaN; write `l != 0`"


@dataclass(frozen=True)
class Element:
    """One element of an output and its correct value."""

    output: str
    """Name of the output."""
    index: tuple[int, ...]
    """Index along each axis."""
    axes: tuple[str, ...]
    """Name of each axis."""
    got: float
    """The value that the kernel stored."""
    answer: float
    """The oracle's value."""
    allowed: float
    """The largest allowed absolute error. 0 where the output must equal the rounded answer; NaN where the answer is not
    finite, for which separate rules apply."""

    @property
    def is_zero_for_nan(self) -> bool:
        """Whether the kernel stored 0 where the answer is NaN."""
        return self.got == 0 and math.isnan(self.answer)

    @property
    def place(self) -> str:
        """Such as `batch 0, head 1, row 6, column 2`."""
        return ", ".join(f"{axis} {i}" for axis, i in zip(self.axes, self.index))


@dataclass(frozen=True)
class OutputAccuracy:
    """The result of comparing one output with the oracle's answer."""

    reason: str | None
    """The first thing that is wrong, with its place; None if the output is correct."""
    max_abs_error: float
    """Largest |output - answer|; NaN if an element is NaN where the answer is not."""
    error_over_budget: float
    """Largest ratio of error to budget; above 1 the output is wrong. inf where only the exact answer passes."""
    error_over_expected: float
    """Largest ratio of error to the error expected of a correct kernel; above 1 is suspicious."""
    worst: Element | None
    """The element with the largest ratio of error to budget, where NaN exceeds any number; None if shapes differ."""
    first_wrong: Element | None
    """The first element in memory order that exceeds its budget; None if there is none or if shapes differ."""
    wrong: Mask
    """True where an element exceeds its budget. Has the output's shape."""
    unwritten: Mask
    """True where no thread stored a value. If the executor did not record stores, this is `untouched(output)`
    instead."""
    over_budget: Float64Array
    """Error / budget of each element, as in `error_over_budget`. Has the output's shape; NaN if shapes differ."""


@dataclass(frozen=True)
class Accuracy:
    """The results of comparing a kernel's outputs with the oracle's answer, by output name, the main output first."""

    by_output: Mapping[str, OutputAccuracy]

    @property
    def main(self) -> OutputAccuracy:
        """The result for the main output."""
        return next(iter(self.by_output.values()))

    @property
    def worst_output(self) -> OutputAccuracy:
        """The result for the first output that is wrong, or for the main output if all are right."""
        return next((each for each in self.by_output.values() if each.reason is not None), self.main)

    @property
    def reason(self) -> str | None:
        """The first thing that is wrong, with its place; None if all outputs passed."""
        return self.worst_output.reason

    @property
    def passed(self) -> bool:
        """Whether every element was written and is within its budget."""
        return self.reason is None

    @property
    def error_over_budget(self) -> float:
        """The largest ratio of error to budget over all outputs; NaN exceeds any number."""
        return worst_ratio(each.error_over_budget for each in self.by_output.values())

    @property
    def error_over_expected(self) -> float:
        """The largest ratio of error to expected error over all outputs; NaN exceeds any number."""
        return worst_ratio(each.error_over_expected for each in self.by_output.values())

    @property
    def suspicious(self) -> bool:
        """Whether the error is within the budget but larger than expected of a correct kernel."""
        return self.passed and self.error_over_expected > 1


def worst_ratio(ratios: Iterable[float]) -> float:
    """The largest ratio; NaN if any of them is NaN."""
    return max(ratios, key=lambda ratio: math.inf if math.isnan(ratio) else ratio)


def measure_accuracy(
    tensors: Sequence[Tensor],
    outputs: Mapping[str, np.ndarray],
    answer: Mapping[str, Float64Array],
    tolerance: Mapping[str, Tolerance],
    unwritten: Mapping[str, Mask] | None = None,
    exact: Mapping[str, ExactOutput] | None = None,
) -> Accuracy:
    """Compare a kernel's outputs with the oracle's answer: all required outputs, and the optional ones that it stores.

    `unwritten` maps the name of an output that looks unwritten to a mask of the elements that no thread stored; None if
    stores were not recorded.

    Every element must satisfy `error <= allowed`, so NaN fails. Where the allowed error is 0, the output must equal the
    answer rounded to nearest. Where the answer is not finite (inputs with NaN or inf), NaN must come out as NaN, and an
    infinity as itself or as NaN. Outputs of `exact` are compared bit for bit instead.
    """
    found = {}
    for tensor in tensors:
        name = tensor.name
        if tensor.role in (OUTPUT, IN_OUT) or (name in outputs and tensor.role != INPUT):
            own = None if exact is None else exact.get(name)
            found[name] = _compare(tensor, outputs[name], answer[name], tolerance[name], unwritten, own)
    return Accuracy(found)


def _compare(
    tensor: Tensor,
    output: np.ndarray,
    answer: Float64Array,
    tolerance: Tolerance,
    unwritten: Mapping[str, Mask] | None,
    exact_output: ExactOutput | None,
) -> OutputAccuracy:
    name, allowed, expected = tensor.name, tolerance.allowed, tolerance.expected
    if output.shape != answer.shape:
        shapes = f"{name} has shape {output.shape} instead of {answer.shape}"
        everywhere, nowhere = np.ones(output.shape, np.bool_), np.zeros(output.shape, np.bool_)
        unknown = np.full(output.shape, math.nan)
        return OutputAccuracy(shapes, math.nan, math.nan, math.nan, None, None, everywhere, nowhere, unknown)
    if exact_output is not None:
        return _compare_bits(tensor, output, exact_output)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        got = output.astype(np.float64)
        error = np.abs(got - answer)
        same = (got == answer) | np.isposinf(allowed)
        no_number = np.isnan(got)
        if no_number.any():
            same |= no_number & ~np.isfinite(answer) & (allowed != 0)
        exact = allowed == 0
        if exact.any():
            same |= exact & (output == answer.astype(output.dtype))
        # inf - inf is NaN; an expected NaN is not an error.
        error = np.where(same & ~np.isfinite(error), 0.0, error)
        ratio = np.where(same, 0.0, error / allowed)
        expected_ratio = np.where(same, 0.0, error / expected)
        wrong = ~same & ~(error <= allowed)

    def element(flat_index: int) -> Element:
        index = tuple(int(i) for i in np.unravel_index(flat_index, answer.shape))
        return Element(name, index, tensor.axes, float(got[index]), float(answer[index]), float(allowed[index]))

    # np.max and np.argmax propagate NaN; np.nanmax would make the worst output look perfect.
    worst = element(int(np.argmax(ratio)))
    first_wrong = element(int(np.argmax(wrong))) if wrong.any() else None
    never_written = untouched(output) if unwritten is None else unwritten.get(name)
    if never_written is None:
        never_written = np.zeros(output.shape, np.bool_)
    reason = None
    if first_wrong is not None:
        reason = _explain(name, untouched(output), never_written, unwritten is not None, got, ratio, wrong, element)
    return OutputAccuracy(
        reason,
        float(np.max(error)),
        float(np.max(ratio)),
        float(np.max(expected_ratio)),
        worst,
        first_wrong,
        wrong,
        never_written,
        ratio,
    )


def _compare_bits(tensor: Tensor, output: np.ndarray, exact: ExactOutput) -> OutputAccuracy:
    """Compare an output whose bits are determined. Elements that were not written are those that kept their value."""
    wrong, right = exact.wrong(output), exact.array
    is_wrong = bool(wrong.any())
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    first = Element(tensor.name, index, tensor.axes, float(output[index]), float(right[index]), 0.0)
    with np.errstate(invalid="ignore"):
        error = np.abs(output[wrong].astype(np.float64) - right[wrong].astype(np.float64))
    ratio = math.inf if is_wrong else 0.0
    return OutputAccuracy(
        reason=exact.explain(tensor.name, tensor.axes, output, wrong) if is_wrong else None,
        max_abs_error=float(np.max(error, initial=0.0)),
        error_over_budget=ratio,
        error_over_expected=ratio,
        worst=first,
        first_wrong=first if is_wrong else None,
        wrong=wrong,
        unwritten=np.zeros(wrong.shape, np.bool_),
        over_budget=np.where(wrong, math.inf, 0.0),
    )


def _explain(
    name: str,
    as_given: Mask,
    never_written: Mask,
    looked: bool,
    got: Float64Array,
    ratio: Float64Array,
    wrong: Mask,
    element: Callable[[int], Element],
) -> str:
    """Describe the worst defect in one line: never written, written with stale data, NaN, or over budget.

    `as_given` is True where the output equals its contents before the run, and `never_written` where no thread wrote,
    which is known only if `looked`.
    """
    never = "were never written" if looked else f"were never written, or {STALE}"
    cases = (
        (never_written, never, ""),
        (as_given, f"were written {STALE}", CAUSES + SANITIZE_HINT),
        (np.isnan(got), "are NaN", ""),
    )
    for where, what, causes in cases:
        if (mask := where & wrong).any():
            first = element(int(np.argmax(mask)))
            return f"{int(mask.sum()):,} of {mask.size:,} elements of {name} {what}, the first at {first.place}{causes}"
    worst = element(int(np.argmax(np.where(wrong, ratio, -1.0))))
    over = ratio[worst.index]
    if np.isfinite(over):
        how = f"{over:.3g} x budget"
    elif worst.is_zero_for_nan:
        how = ZERO_FOR_NAN
    else:
        how = "only the exact value passes here" if np.isfinite(worst.answer) else "it has to be NaN or infinite"
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are off by more than their budget, "
        f"the worst at {worst.place}: {worst.got:.6g} instead of {worst.answer:.6g} "
        f"({how})"
    )


def untouched(output: np.ndarray) -> Mask:
    """True where every byte is still 0xFF, the NaN pattern that outputs, scratch and emulated shared memory start with.

    No arithmetic produces this pattern otherwise.
    """
    bits = np.ascontiguousarray(output).view(np.dtype(f"u{output.dtype.itemsize}"))
    return np.asarray(bits == np.iinfo(bits.dtype).max)


def all_zero(output: np.ndarray) -> Mask:
    """True where every byte is 0: the unwritten elements of an output that was initialized to zeros."""
    return np.asarray(np.ascontiguousarray(output).view(f"u{output.dtype.itemsize}") == 0)
