"""What must hold between several runs of one kernel, or within one, without knowing the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.numerics import Numerics

Arrays = Mapping[str, np.ndarray]
Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """A problem with inputs, what a kernel made of them, and the kernel itself, to be run on other inputs."""

    problem: Any
    """An instance of the operation's class of problems."""
    inputs: Arrays
    outputs: Arrays
    """All that are not optional, and those that the kernel stores."""
    run: Callable[[Any, Arrays], Arrays]
    """Problem and inputs -> outputs."""
    numerics: Numerics
    """Where the kernel rounds: what budgets are derived from."""


@dataclass(frozen=True)
class Property:
    """One thing that must hold."""

    name: str
    """How the command line calls it."""
    idea: str
    """One line: what has to stay, and under what."""
    violation: Callable[[Trial], str | None]
    """None, or what does not hold and where."""
    same_bits: bool = False
    """It asks for the very bits, which not every variant claims."""


def determinism(trial: Trial) -> str | None:
    """The same inputs give the same bits once more."""
    again = trial.run(trial.problem, trial.inputs)
    for name, first in trial.outputs.items():
        if reason := other_bits(trial, name, first, again[name], "a second run on the same inputs"):
            return reason
    return None


DETERMINISM = Property("determinism", "the same inputs once more: the same bits", determinism, same_bits=True)
"""The property that every operation has."""
SANITIZER = "sanitizer"
"""What a case holds that is looked at for races, reads of memory that nobody wrote and the like. No `Property`, for it
is of no operation: whoever runs the kernel looks on."""
SANITIZER_IDEA = "no race, no read of memory that nobody wrote, no schedule that changes the answer; on the emulator"

GRID = 8.0
LARGEST_ON_GRID = 8.0


def on_grid(array: np.ndarray) -> np.ndarray:
    """The nearest eighths of at most 8, for where sums of inputs have to be exact; NaN becomes 0.

    8 bits hold the sum of two, as every dtype of numbers does.
    """
    values = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=LARGEST_ON_GRID, neginf=-LARGEST_ON_GRID)
    grid = np.clip(np.round(values * GRID) / GRID, -LARGEST_ON_GRID, LARGEST_ON_GRID)
    return np.ascontiguousarray(grid.astype(array.dtype))


def other_bits(trial: Trial, name: str, first: np.ndarray, second: np.ndarray, what: str) -> str | None:
    """Where two arrays of the output `name` differ in their bits, in one line; None where they do not.

    `what` the second one is. Which NaN it is may depend on anything.
    """
    bits = np.dtype(f"u{first.dtype.itemsize}")
    wrong = np.ascontiguousarray(first).view(bits) != np.ascontiguousarray(second).view(bits)
    wrong &= ~(np.isnan(first.astype(np.float64)) & np.isnan(second.astype(np.float64)))
    return _described(trial, name, wrong, first, second, f"other bits than {what}")


def apart(
    trial: Trial, name: str, first: np.ndarray, second: np.ndarray, allowed: Float64Array, what: str
) -> str | None:
    """Where two arrays of the output `name` are further apart than `allowed`, in one line; None where they are not.

    `what` the second one is. Where `allowed` is not finite, there is nothing to compare.
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
