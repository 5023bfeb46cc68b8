"""Arrays of a caller in Python, from NumPy, PyTorch, CuPy or any library with DLPack, and outputs of the same kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.model.cases.regime import NUMPY_DTYPES
from harness.operations.attention.layout import GRADIENTS, TENSORS, Layout
from harness.operations.paged_attention.pool_layout import PoolLayout
from harness.studies.run.user_arrays import Given
from harness.support.errors import UsageError

IN_PLACE = "given"
"""Value of `layout` for which kernels get the strides of the arrays."""


def as_numpy(name: str, array: Any) -> np.ndarray:
    """Return the array's elements in host memory, with its strides where possible.

    bfloat16 and float8_e4m3fn become types of `ml_dtypes`.

    Raises `UsageError` if it is no array.
    """
    if isinstance(array, np.ndarray):
        return array
    if _is_torch(array):
        held = array.detach().cpu()
        if str(held.dtype) == "torch.bfloat16":
            import torch

            return np.asarray(held.view(torch.int16).numpy()).view(NUMPY_DTYPES["bfloat16"])
        if str(held.dtype) == "torch.float8_e4m3fn":
            import torch

            return np.asarray(held.view(torch.uint8).numpy()).view(np.dtype("float8_e4m3fn"))
        return np.asarray(held.numpy())
    if _is_cupy(array):
        return np.asarray(array.get())
    if hasattr(array, "__dlpack__"):
        return np.from_dlpack(array)
    if hasattr(array, "__array__"):
        return np.asarray(array)
    raise UsageError(
        f"{name} is a {type(array).__name__}; pass an array of NumPy, PyTorch or CuPy, or one that has __dlpack__"
    )


def given(name: str, array: Any) -> Given:
    """Return the array for `gather_arrays`. Raises `UsageError` if it is no array."""
    return Given("the array", as_numpy(name, array))


def in_kind_of(array: Any, output: np.ndarray) -> Any:
    """Return an output as an array of the same library as `array`, and on its device."""
    if _is_torch(array):
        import torch

        if output.dtype == NUMPY_DTYPES["bfloat16"]:
            return torch.from_numpy(output.view(np.int16)).view(torch.bfloat16).to(array.device)
        return torch.from_numpy(output).to(array.device)
    if _is_cupy(array):
        import cupy

        return cupy.asarray(output)
    return output


def layout_of(arrays: Mapping[str, np.ndarray], axes_left_out: int) -> Layout | PoolLayout:
    """Return the layout in which kernels get Q, K and V as these arrays lie, and write O with its axes in Q's order.

    If there is a page table, it is that of a pool: K and V are taken as they lie, and Q is copied. If O and dO are
    given, too, they are taken as they lie, and dQ, dK and dV lie like Q, K and V. Strides are those within each array;
    kernels get each in a buffer of its own. Raises `UsageError` or `ProblemError` if there is no such layout.
    """
    named = {name: array for name, array in arrays.items() if name in (*TENSORS, *GRADIENTS)}
    strides = {name: _element_strides(name, array) for name, array in named.items()}
    if axes_left_out or "Q" not in strides:
        raise UsageError(
            f"layout={IN_PLACE!r} needs arrays (batch, heads, len, head_dim); add axes, or leave it out: copies are "
            "C-contiguous"
        )
    if "table" in arrays:
        return PoolLayout.of_strides(K=strides["K"], V=strides["V"])
    if "O" in strides:
        return Layout.of_strides(**strides, **{f"d{name}": strides[name] for name in "QKV"})
    order = sorted(range(3), key=lambda axis: strides["Q"][axis], reverse=True)
    shape, size, of_output = arrays["Q"].shape, arrays["V"].shape[-1], [0, 0, 0, 1]  # a row of O is as long as one of V
    for axis in reversed(order):
        of_output[axis] = size
        size *= shape[axis]
    return Layout.of_strides(**strides, O=of_output)


def _element_strides(name: str, array: np.ndarray) -> Sequence[int]:
    """An axis of extent 1 may have any stride: it gets one that overlaps nothing."""
    if any(stride % array.itemsize or stride < 0 for stride in array.strides):
        raise UsageError(f"{name} has strides of {array.strides} bytes; kernels need whole elements, forwards")
    whole = sum((n - 1) * stride // array.itemsize for n, stride in zip(array.shape, array.strides)) + 1
    strides = [stride // array.itemsize for stride in array.strides]
    last = len(strides) - 1
    return [
        stride if extent > 1 else 1 if axis == last else whole
        for axis, (stride, extent) in enumerate(zip(strides, array.shape))
    ]


def _is_torch(array: Any) -> bool:
    return type(array).__module__.partition(".")[0] == "torch" and hasattr(array, "detach")


def _is_cupy(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__") and hasattr(array, "get")
