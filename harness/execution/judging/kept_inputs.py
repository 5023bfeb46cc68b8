"""Checks that a kernel leaves its inputs unchanged, since later runs read the same arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from harness.model.placed_tensors import UNUSED_BYTE, unused_elements
from harness.model.problem import Tensor
from harness.support.errors import KernelFault

INPUT_WRITTEN = "input written"
"""The name of this kind of fault, which is also a kind of sanitizer finding."""
GAP_WRITTEN = "gap written"
"""The name of the fault of a store between the rows of a tensor."""


def require_kept(
    inputs: Iterable[Tensor],
    given: Mapping[str, npt.ArrayLike],
    after: Callable[[Tensor], np.ndarray],
    writers: Callable[[Tensor], str],
) -> None:
    """Raise `KernelFault` if a run changed one of `inputs`. Arrays are compared bytewise, so a NaN equals itself.

    `after` returns an input's contents after the run. `writers` names the kernels that may have written it, as the
    beginning of a message.
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


def require_unused_kept(tensors: Iterable[Tensor], buffer: str, after: np.ndarray, writers: str) -> None:
    """Raise `KernelFault` if a run changed an element of a buffer that belongs to none of the problem's `tensors`.

    `after` is the buffer's contents after the run. `writers` is as in `require_kept`.
    """
    tensors = tuple(tensors)
    unused = unused_elements(tensors, buffer)
    if unused is None:
        return
    bits = after.reshape(-1).view(np.uint8).reshape(unused.size, -1)
    changed = unused & (bits != UNUSED_BYTE).any(axis=1)
    if changed.any():
        owners = " and ".join(tensor.name for tensor in tensors if tensor.buffer == buffer)
        raise KernelFault(
            GAP_WRITTEN,
            f"{writers}: store between the rows of {owners}: {int(changed.sum()):,} elements of the buffer that belong "
            f"to no row changed, the first at byte offset {int(np.argmax(changed)) * after.itemsize:,}; use the "
            "strides of the tensor",
        )


def _changed(before: np.ndarray, after: np.ndarray) -> npt.NDArray[np.bool_]:
    """For each element, in memory order, whether its bytes differ."""
    bits = [np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}") for array in (before, after)]
    changed: npt.NDArray[np.bool_] = bits[0] != bits[1]
    return changed
