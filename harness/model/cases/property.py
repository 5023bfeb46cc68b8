"""Defines properties that must hold within one run of a kernel or between several, without a known correct answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import UNIT_ROUNDOFF
from harness.model.array_types import Arrays as Arrays
from harness.model.array_types import Float64Array
from harness.model.invariance import BATCH
from harness.support.cores import begin

if TYPE_CHECKING:
    from harness.model.operation import Tolerance


@dataclass(frozen=True)
class Trial:
    """A problem with inputs, a kernel's outputs for them, and the kernel, to be run on other inputs."""

    problem: Any
    """An instance of the operation's problem class."""
    inputs: Arrays
    outputs: Arrays
    """All outputs that are not optional, and the optional ones that the kernel stores."""
    run: Callable[[Any, Arrays], Arrays]
    """Runs the kernel on a problem and inputs, and returns its outputs."""
    tolerance: Callable[[Arrays], Mapping[str, Tolerance]]
    """Returns the tolerances of the outputs for other inputs of `problem`, by output."""

    def begin_allowed(self, inputs: Arrays) -> Callable[[Arrays], dict[str, Float64Array]]:
        """Begin to derive the largest errors allowed for `inputs`, while the kernel runs on them.

        The function returned takes the outputs, and returns the largest error allowed of each element: at least its own
        rounding, since a tolerance of 0 means the correctly rounded answer.
        """
        tolerance = begin(self.tolerance, inputs)

        def allowed(outputs: Arrays) -> dict[str, Float64Array]:
            limits = tolerance()
            roundoff = {
                tensor.name: UNIT_ROUNDOFF[tensor.dtype] for tensor in self.problem.tensors if tensor.name in outputs
            }
            return {
                name: np.fmax(limits[name].allowed, roundoff[name] * np.abs(output.astype(np.float64)))
                for name, output in outputs.items()
            }

        return allowed


@dataclass(frozen=True)
class Property:
    """A property of a kernel's outputs."""

    name: str
    """Name on the command line."""
    idea: str
    """What must not change, and under which change, in one line."""
    violation: Callable[[Trial], str | None]
    """Returns what does not hold and where; None if the property holds."""
    same_bits: bool = False
    """Whether it requires equal bits, which not every variant claims."""
    invariance: str | None = None
    """The declaration that it requires, of `INVARIANCES`; None if every variant has to have the property."""


def determinism(trial: Trial) -> str | None:
    """Check that the same inputs give the same bits again."""
    return other_outputs(trial, trial.run(trial.problem, trial.inputs), "a second run on the same inputs")


DETERMINISM = Property("determinism", "a second run gives the same bits", determinism, same_bits=True)
"""The property that every operation has."""


def invariance_of_batches(violation: Callable[[Trial], str | None]) -> Property:
    """The property of variants that declare `BATCH`; `violation` compares a sequence alone with one in a batch."""
    idea = "a sequence gives the same bits alone and in a batch"
    return Property("batch-invariance", idea, violation, same_bits=True, invariance=BATCH)


SANITIZER = "sanitizer"
"""Value of `check` for cases that run under the sanitizer, which detects races, reads of uninitialized memory and the
like. It is not a `Property`, because it does not depend on the operation."""
SANITIZER_IDEA = "no races, no reads of unwritten memory, the same result in any schedule; only on the emulator"

VECTOR_BYTES = 16
"""The widest vector that a thread accesses."""


def alignment_period(*arrays: np.ndarray) -> int:
    """Return how many entries of the first axis lie between two that begin at the same place in a vector.

    A right kernel may add up an entry in another order if it begins at another place.
    """
    return max(VECTOR_BYTES // math.gcd(array[0].nbytes, VECTOR_BYTES) for array in arrays)


GRID = 8.0
LARGEST_ON_GRID = 8.0


def on_grid(array: np.ndarray) -> np.ndarray:
    """Round to the nearest multiple of 1/8 of magnitude at most 8, so that sums of inputs are exact. NaN becomes 0.

    8 bits hold the sum of two such numbers, and every number format has that many.
    """
    values = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=LARGEST_ON_GRID, neginf=-LARGEST_ON_GRID)
    grid = np.clip(np.round(values * GRID) / GRID, -LARGEST_ON_GRID, LARGEST_ON_GRID)
    return np.ascontiguousarray(grid.astype(array.dtype))


def other_bits(trial: Trial, name: str, first: np.ndarray, second: np.ndarray, what: str) -> str | None:
    """Describe where two arrays of the output `name` differ in their bits, in one line; None if they are equal.

    `what` describes the second array. All NaNs count as equal.
    """
    bits = np.dtype(f"u{first.dtype.itemsize}")
    wrong = np.ascontiguousarray(first).view(bits) != np.ascontiguousarray(second).view(bits)
    wrong &= ~(np.isnan(first.astype(np.float64)) & np.isnan(second.astype(np.float64)))
    return _described(trial, name, wrong, first, second, f"not bit-identical to {what}")


def other_outputs(
    trial: Trial,
    outputs: Arrays,
    what: str,
    where: slice | tuple[slice, ...] = slice(None),
    names: Container[str] | None = None,
) -> str | None:
    """Describe the first output whose elements `where` have other bits than `outputs`; None if there is none.

    `outputs` have the shape of these elements, and `what` describes them. `names`: the outputs to compare; None: all.
    """
    for name, first in trial.outputs.items():
        if names is not None and name not in names:
            continue
        second = first.copy()
        second[where] = outputs[name]
        if reason := other_bits(trial, name, first, second, what):
            return reason
    return None


def apart(
    trial: Trial, name: str, first: np.ndarray, second: np.ndarray, allowed: Float64Array, what: str
) -> str | None:
    """Describe where two arrays of the output `name` differ by more than `allowed`, in one line; None if they do not.

    `what` describes the second array. Elements for which `allowed` is not finite are not compared.
    """
    one, other = first.astype(np.float64), second.astype(np.float64)
    with np.errstate(invalid="ignore"):
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        wrong = ~(np.abs(one - other) <= allowed) & ~same & np.isfinite(allowed)
    return _described(trial, name, wrong, one, other, f"further from {what} than their budgets allow")


def _described(
    trial: Trial, name: str, wrong: npt.NDArray[np.bool_], first: np.ndarray, second: np.ndarray, what: str
) -> str | None:
    if not wrong.any():
        return None
    axes = next(tensor.axes for tensor in trial.problem.tensors if tensor.name == name)
    where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    place = ", ".join(f"{axis} {int(i)}" for axis, i in zip(axes, where))
    return (
        f"{int(wrong.sum()):,} of {wrong.size:,} elements of {name} are {what}, the first at {place}: "
        f"{float(first[where]):.9g} and {float(second[where]):.9g}"
    )
