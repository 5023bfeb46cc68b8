"""Measures whether a passing answer proves anything: how far trivial wrong answers lie outside of what would pass.

A budget follows from the inputs and from the numerics that a variant declares, and may be so wide that no answer can
fail. So a question is required to reject answers that need no work: zeros, those of the neighbouring row, head or
batch, and the operation's own, such as the mean of V or the answer without half of the keys
(`Operation.trivial_answers`). An answer passes if every error is at most the expected one (`Accuracy.suspicious` does
not pass), so

    power = min over wrong answers of max over elements of error / expected                                     (1)

and below 1 a trivial wrong answer passes. An answer that is right to within float64 rounding is not wrong: the mean of
V if all keys are equal, or a neighbouring head that has the same answer.

The maximum over some rows is a lower bound of the maximum over all. So (1) is first evaluated on a few rows, which is
conclusive for nearly all questions at a small part of the oracle's cost. Only if some wrong answer is not rejected
there, it is evaluated on all rows. A fuzzing campaign, which only counts undecided cases, stops after the sampled
rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Arrays, Float64Array
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import WHOLE, Part, Tolerance, TrivialAnswer, operation_of
from harness.model.problem import BaseProblem, Tensor

Outputs = Mapping[str, Float64Array]

DECISIVE_POWER = 1.0
"""With a power below this, a trivial wrong answer passes."""
SAMPLE_FLOPS = 1e5
"""Problems of up to this many FLOP are evaluated whole at once. Of larger ones, some parts are sampled."""
SAMPLE_ROWS = 4
"""Number of rows sampled from each part: its last ones."""
ROUNDING_TOLERANCE = 1e-12
"""Relative difference of float64 rounding, for sums over about 10^4 terms."""
MOST_SAMPLES = 2
"""Number of parts sampled. If they are inconclusive, all rows are evaluated."""


@dataclass(frozen=True)
class Power:
    """How well a question separates right answers from trivial wrong ones."""

    ratio: float
    """Equation (1), or a lower bound of at least `DECISIVE_POWER`: largest error of `nearest` / largest passing error.
    inf if every wrong answer differs in an element that has to be exact, or if there is no wrong answer."""
    nearest: str | None
    """The trivial wrong answer that comes closest to passing, in words; None if there is none."""

    @property
    def decides(self) -> bool:
        """Whether all trivial wrong answers fail."""
        return self.ratio >= DECISIVE_POWER

    @property
    def in_words(self) -> str:
        """Describe which wrong answer passes, and by how much."""
        passing = f"a trivial wrong result ({self.nearest}) would pass too"
        return f"{passing}: its error is at most {self.ratio:.2g} times the error expected from rounding"


def measure_power(
    problem: BaseProblem,
    inputs: Arrays,
    answer: Outputs,
    tolerance: Mapping[str, Tolerance],
    part: Part = WHOLE,
    in_full: bool = True,
) -> Power:
    """Return the power of a question, given the `answer` and `tolerance` of `part` by output.

    Without `in_full`, an answer that the sampled rows leave open counts as passing, and one that is right on them as
    right.
    """
    tensors = problem.outputs
    if all(np.isposinf(tolerance[tensor.name].expected).all() for tensor in tensors):
        return Power(0.0, "any answer")
    wrong = _wrong_answers(problem, inputs, answer, tensors)
    ratios = dict.fromkeys(wrong, 0.0)
    is_right = dict.fromkeys(wrong, True)

    def look(here: Part, at: Part) -> None:
        for name in [name for name in ratios if ratios[name] < DECISIVE_POWER]:
            outputs = wrong[name](here, at)
            ratios[name] = max(ratios[name], *(_over(t, outputs, answer, tolerance, at) for t in tensors))
            if ratios[name] < DECISIVE_POWER:
                is_right[name] &= all(_equal(outputs[t.name], answer[t.name][at.of(t.name)]) for t in tensors)

    samples = _samples(problem) if part is WHOLE else []
    for sample in samples:
        look(sample, sample)
    if in_full or not samples:
        look(part, WHOLE)
    open_ = {name: ratio for name, ratio in ratios.items() if ratio >= DECISIVE_POWER or not is_right[name]}
    if not open_:
        return Power(math.inf, None)
    nearest = min(open_, key=open_.__getitem__)
    return Power(open_[nearest], nearest)


def _samples(problem: BaseProblem) -> list[Part]:
    """Some rows of a problem; empty if the problem is small."""
    parts = [each for each in operation_of(problem).parts(problem, SAMPLE_FLOPS) if each is not WHOLE]
    # Take the last part first: under a causal mask its rows see most keys.
    chosen = (parts[-1:] + parts[: MOST_SAMPLES - 1]) if parts else []
    return [
        Part(_last_rows(each.where), each.name, {name: _last_rows(where) for name, where in each.others.items()})
        for each in chosen
    ]


def _last_rows(where: tuple[slice, ...]) -> tuple[slice, ...]:
    """Restrict a part, whose last slice is over rows or keys, to its last rows."""
    *others, rows = where
    return (*others, slice(max(rows.start, rows.stop - SAMPLE_ROWS), rows.stop))


def _wrong_answers(
    problem: BaseProblem, inputs: Arrays, answer: Outputs, tensors: Sequence[Tensor]
) -> dict[str, Callable[[Part, Part], Outputs]]:
    """Trivial wrong answers by name.

    Each is a function of a part and of its place in `answer`; it returns the part's outputs.
    """
    main = tensors[0]

    def zeros(part: Part, at: Part) -> Outputs:
        return {t.name: np.zeros_like(answer[t.name][at.of(t.name)]) for t in tensors}

    def neighbours(axis: str, part: Part, at: Part) -> Outputs:
        return {t.name: _of_the_one_before(answer[t.name], at.of(t.name), t.axis(axis)) for t in tensors}

    def own(trivial: TrivialAnswer, part: Part, at: Part) -> Outputs:
        return trivial(part)

    return {
        "zeros": zeros,
        **{
            f"the answer of the neighbouring {axis}": functools.partial(neighbours, axis)
            for axis, extent in zip(main.axes[:-1], answer[main.name].shape)
            if extent > 1
        },
        **{
            name: functools.partial(own, trivial)
            for name, trivial in operation_of(problem).trivial_answers(problem, inputs).items()
        },
    }


def _of_the_one_before(array: Float64Array, at: tuple[slice, ...], axis: int | None) -> Float64Array:
    """`array[at]` shifted by one towards the front along an axis; elements without a predecessor are unchanged.

    None: the array does not have the axis, and is unchanged.
    """
    if axis is None:
        return array[at]
    places: list[slice | npt.NDArray[np.intp]] = [*at, *(slice(None),) * (array.ndim - len(at))]
    taken = places[axis]
    assert isinstance(taken, slice)
    places[axis] = np.maximum(np.arange(*taken.indices(array.shape[axis])) - 1, 0)
    return array[tuple(places)]


def _over(tensor: Tensor, wrong: Outputs, answer: Outputs, tolerance: Mapping[str, Tolerance], at: Part) -> float:
    """The largest error of a wrong answer / largest passing error, for one output."""
    where = at.of(tensor.name)
    right, limit = answer[tensor.name][where], tolerance[tensor.name].expected[where]
    # A kernel would store it in the output's dtype.
    dtype = NUMPY_DTYPES.get(tensor.dtype) or np.dtype(tensor.dtype)
    with np.errstate(all="ignore"):
        stored = wrong[tensor.name].astype(dtype)
        if not limit.any():  # exact outputs are large
            return 0.0 if np.array_equal(stored, right.astype(dtype), equal_nan=True) else math.inf
        error = np.abs(stored.astype(np.float64) - right)
        passes = (error == 0) | np.isposinf(limit) | ((limit == 0) & (stored == right.astype(dtype)))
        finite = np.isfinite(right)
        if not finite.all():
            passes |= ~finite & (np.isnan(stored.astype(np.float64)) | (stored == right))
        ratio = np.where(passes, 0.0, error / limit)
    largest = float(ratio.max(initial=0.0))
    return math.inf if math.isnan(largest) else largest


def _equal(one: Float64Array, other: Float64Array) -> bool:
    """Whether two arrays are equal to within float64 rounding."""
    finite = np.isfinite(other)
    largest = float(np.abs(other).max(initial=0.0, where=finite))
    return bool(np.allclose(one, other, rtol=0.0, atol=ROUNDING_TOLERANCE * largest, equal_nan=True))
