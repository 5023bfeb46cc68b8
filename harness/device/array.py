"""Arrays in the memory of an emulated device, in NumPy's terms."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.compilers import DevicePointer
from harness.device.memory import Allocation
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.device.device import Device


class DeviceArray:
    """An array in the memory of a `Device`, made by `Device.array`, `empty` or `zeros`. Kernels take it as a pointer.

    `x[...] = values` copies to the device and `x.numpy()` back. An index of integers and slices gives a view of the
    same memory, as do `x.T`, `x.reshape(...)` and `x.view(dtype)`. NumPy's functions accept the array: they get a copy.
    """

    def __init__(self, device: Device, allocation: Allocation, host: npt.NDArray[Any], offset: int) -> None:
        """`host` is the array in the memory of this process; it begins at `offset` bytes of the allocation."""
        self.device = device
        self._allocation = allocation
        self._host = host
        self._offset = offset

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in elements."""
        return self._host.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._host.dtype

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between consecutive elements of each dimension."""
        return self._host.strides

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self._host.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._host.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, without gaps between them."""
        return self._host.nbytes

    @property
    def address(self) -> int:
        """Address of the first element in device memory. Raises `UsageError` if the array was freed."""
        return self._allocated().address + self._offset

    @property
    def name(self) -> str:
        """Name of the memory in counts, faults and findings."""
        return self._allocation.name

    @property
    def pointer(self) -> DevicePointer:
        """The array as an argument of a compiled kernel. Raises `UsageError` if the array was freed."""
        strides = None if self._host.flags.c_contiguous else self.strides
        return DevicePointer(self.address, self.shape, self.dtype, strides)

    def numpy(self) -> npt.NDArray[Any]:
        """Copy the elements to a new NumPy array. Raises `UsageError` if the array was freed."""
        self._allocated()
        self.device.synchronize()
        copied: npt.NDArray[Any] = self._host.copy()
        return copied

    def free(self) -> None:
        """Free the memory, and with it that of all views. A kernel that uses it later is at fault."""
        self._allocation.free()

    @property
    def T(self) -> DeviceArray:
        """A view with the dimensions in reverse order."""
        return self._viewed(self._host.T)

    def reshape(self, *shape: Any) -> DeviceArray:
        """A view with another shape. Raises `UsageError` if the elements do not lie in memory accordingly."""
        try:
            changed = self._host.reshape(*shape)
        except (TypeError, ValueError) as error:
            raise UsageError(f"array {self.name}: {error}") from error
        if changed.size and not np.shares_memory(changed, self._host):
            raise UsageError(
                f"array {self.name} with strides {self.strides} has no view of shape {shape}; make a new array of "
                "x.numpy().reshape(...)"
            )
        return self._viewed(changed)

    def as_strided(self, shape: Iterable[int], strides: Iterable[int]) -> DeviceArray:
        """A view from the first element on with any shape and strides in bytes, such as those of another library.

        Raises `UsageError` if it extends beyond the memory of the array.
        """
        shape, strides = tuple(shape), tuple(strides)
        last = sum((extent - 1) * stride for extent, stride in zip(shape, strides))
        left = self._allocated().size_bytes - self._offset
        if len(shape) != len(strides) or min(strides, default=0) < 0 or (0 not in shape and last >= left):
            raise UsageError(f"array {self.name} has no view of shape {shape} with strides {strides}")
        return self._viewed(np.lib.stride_tricks.as_strided(self._host, shape, strides))

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """A view of the same bytes as elements of another type. Raises `UsageError` if they do not fit."""
        try:
            return self._viewed(self._host.view(element_type(dtype)))
        except (TypeError, ValueError) as error:
            raise UsageError(f"array {self.name}: {error}") from error

    def __getitem__(self, index: Any) -> Any:
        """A view, or a NumPy scalar if the index names one element. Raises `UsageError` for an index with arrays."""
        self._allocated()
        found = self._host[index]
        if not isinstance(found, np.ndarray) or isinstance(found, np.void):
            self.device.synchronize()
            return found.copy()
        if found.size and not np.may_share_memory(found, self._host):
            raise UsageError(f"array {self.name}: an index on the device is of integers and slices; use x.numpy()[...]")
        return self._viewed(found)

    def __setitem__(self, index: Any, values: Any) -> None:
        """Copy `values` from the host, or from another device array, to some of the elements."""
        allocation = self._allocated()
        self.device.synchronize()
        self._host[index] = values.numpy() if isinstance(values, DeviceArray) else values
        state = self.device.memory.buffer_of(allocation).written
        if state is not None:
            kind = f"V{self.dtype.itemsize}"
            begin = self._offset
            whole: npt.NDArray[Any] = np.ndarray(self.shape, kind, state.data, begin, self.strides)
            whole[index] = np.zeros((), kind)

    def __len__(self) -> int:
        return len(self._host)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        if copy is False:
            raise ValueError("a device array is copied to the host; a copy cannot be avoided")
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array for libraries that run on this emulated device: version 3 of the CUDA array interface."""
        found = {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None if self._host.flags.c_contiguous else self.strides,
            "version": 3,
        }
        if self.dtype.names is not None:
            found["descr"] = self.dtype.descr
        return found

    def __repr__(self) -> str:
        state = " (freed)" if self._allocation.is_freed else f" at {self.address:#x}"
        return f"<DeviceArray {self.name}: {self.dtype} {self.shape}{state}>"

    def _viewed(self, host: npt.NDArray[Any]) -> DeviceArray:
        begin = host.__array_interface__["data"][0] - self._host.__array_interface__["data"][0]
        return DeviceArray(self.device, self._allocation, host, self._offset + begin)

    def _allocated(self) -> Allocation:
        if self._allocation.is_freed:
            raise UsageError(f"array {self.name} was freed; make a new one with device.array")
        return self._allocation


def element_type(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return NumPy's type of an array's elements. Raises `UsageError` for one that no GPU has."""
    try:
        found = np.dtype(dtype)
    except TypeError as error:
        raise UsageError(f"dtype is {dtype!r}; it has to be a type of NumPy, such as np.float32") from error
    if found.hasobject or found.kind in "SU" or found.char in "gG" or not found.itemsize:
        raise UsageError(
            f"arrays of {found} cannot be on a device; convert to numbers of a fixed size, as with x.astype(np.float32)"
        )
    if found.byteorder not in "=|" and not found.isnative:
        raise UsageError(f"arrays of {found} are in another byte order; use x.astype(x.dtype.newbyteorder('='))")
    return found


def extents_of(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple. Raises `UsageError` if it has something other than whole numbers of at least 0."""
    try:
        extents = tuple(operator.index(extent) for extent in (shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        extents = (-1,)
    if any(extent < 0 for extent in extents):
        raise UsageError(f"shape is {shape!r}; it has to be a whole number, or a tuple of them, of at least 0")
    return extents


def c_strides(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Return the strides in bytes of a C-contiguous array."""
    ends = itertools.accumulate(reversed(shape[1:]), operator.mul, initial=item_bytes)
    return tuple(reversed([*ends][: len(shape)]))


def span_of(shape: tuple[int, ...], strides: tuple[int, ...], item_bytes: int) -> tuple[int, int]:
    """Return the bytes before the first element and the bytes from there to the end, over all elements."""
    if 0 in shape:
        return 0, 0
    reaches = [(extent - 1) * stride for extent, stride in zip(shape, strides)]
    return -sum(min(0, reach) for reach in reaches), sum(max(0, reach) for reach in reaches) + item_bytes
