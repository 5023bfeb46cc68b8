"""Moves tensors between their logical arrays and the buffers that contain them.

Only the executors use buffers. Everything else, such as the oracle and the error budget, sees logical arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.problem import ELEMENT_BYTES, BaseProblem, Tensor

UNUSED_BYTE = 0xFF
"""Every byte of the elements of an input's buffer that belong to no tensor: NaN in every floating-point type."""


def view(tensor: Tensor, buffer: Any, of: Any = np) -> Any:
    """Return a view of `tensor`, in its shape, of the array of its buffer, which is of NumPy or CuPy (`of`)."""
    if tensor.placement is None:
        return buffer.reshape(tensor.shape)
    flat = buffer.reshape(-1)[tensor.first :]
    return of.lib.stride_tricks.as_strided(flat, tensor.shape, [s * flat.itemsize for s in tensor.strides])


def placed_inputs(problem: BaseProblem, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the contents of the inputs' buffers by name. An input that has one of its own is returned as it is."""
    buffers: dict[str, npt.NDArray[Any]] = {}
    for tensor in problem.inputs:
        given = inputs[tensor.name]
        if tensor.placement is None:
            buffers[tensor.name] = given
            continue
        if tensor.buffer not in buffers:
            size_bytes = tensor.placement.elements * ELEMENT_BYTES[tensor.dtype]
            buffers[tensor.buffer] = np.full(size_bytes, UNUSED_BYTE, np.uint8).view(given.dtype)
        view(tensor, buffers[tensor.buffer])[...] = given
    return buffers


def unused_elements(tensors: Iterable[Tensor], buffer: str) -> npt.NDArray[np.bool_] | None:
    """Return True for each element of a buffer that belongs to none of `tensors`; None if there is no such element."""
    inside = [tensor for tensor in tensors if tensor.placement is not None and tensor.buffer == buffer]
    if not inside or inside[0].placement is None:
        return None
    unused = np.ones(inside[0].placement.elements, np.bool_)
    for tensor in inside:
        view(tensor, unused)[...] = False
    return unused if unused.any() else None
