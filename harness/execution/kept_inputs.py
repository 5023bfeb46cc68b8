"""Inputs are there to be read: a kernel that changes one has spoilt it for whoever comes next, its own answer aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.problem import Tensor
from harness.support.errors import KernelFault

INPUT_WRITTEN = "input written"
"""The kind of fault, and of a sanitizer's finding."""


def require_kept(
    inputs: Iterable[Tensor],
    given: Mapping[str, npt.ArrayLike],
    after: Callable[[Tensor], np.ndarray],
    writers: Callable[[Tensor], str],
) -> None:
    """Raise `KernelFault` where a run has changed one of `inputs`, by its bytes, so that a NaN is equal to itself.

    `after` fetches an input as the run left it, `writers` says who wrote there, as a message begins.
    """
    for tensor in inputs:
        changed = _changed(np.asarray(given[tensor.name]), after(tensor))
        if changed.any():
            first = int(np.argmax(changed))
            where = ", ".join(f"{axis} {i}" for axis, i in zip(tensor.axes, np.unravel_index(first, tensor.shape)))
            raise KernelFault(
                INPUT_WRITTEN,
                f"{writers(tensor)}: store into {tensor.name}, which is an input: {int(changed.sum()):,} of its "
                f"{changed.size:,} elements changed, the first at {where}; inputs may only be read",
            )


def _changed(before: np.ndarray, after: np.ndarray) -> npt.NDArray[np.bool_]:
    """For each element, in the order of memory, whether its bytes differ."""
    bits = [np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}") for array in (before, after)]
    changed: npt.NDArray[np.bool_] = bits[0] != bits[1]
    return changed
