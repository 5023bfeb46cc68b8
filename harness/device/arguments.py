"""Turns the arguments of a Python call into those that a kernel's toolchain packs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.compilers import DevicePointer, Parameter
from harness.device.array import DeviceArray
from harness.device.memory import DeviceMemory
from harness.model.plan import map_leaves
from harness.support.errors import UsageError


@dataclass(frozen=True)
class DeviceTensorMap:
    """A tensor map of a device array, made by `Device.tensor_map`.

    CUDA kernels take it by value (`const __grid_constant__ CUtensorMap`), Numba kernels its address as a uint64.
    """

    array: DeviceArray
    """The array, which stays allocated as long as the map is used."""
    encoded: bytes
    """Its 128 bytes, in the emulator's format."""
    place: DeviceArray
    """The same bytes in device memory."""

    @property
    def address(self) -> int:
        """Address of the map in device memory."""
        return self.place.address


def device_argument(kernel: str, position: int, argument: Any, memory: DeviceMemory, maps_by_value: bool) -> Any:
    """Return a pointer for an array of this device, and bytes or an address for a tensor map; others as they are.

    Raises `UsageError` for an array of the host or of another device.
    """
    what = f"kernel {kernel}: argument {position} is"
    if isinstance(argument, tuple):
        return map_leaves(lambda leaf: device_argument(kernel, position, leaf, memory, maps_by_value), argument)
    if isinstance(argument, DeviceTensorMap):
        return np.void(argument.encoded) if maps_by_value else np.uint64(argument.address)
    if isinstance(argument, DeviceArray):
        if argument.device.memory is not memory:
            raise UsageError(f"{what} {argument!r} of another device; copy it: device.array(x.numpy())")
        return argument.pointer
    if isinstance(argument, np.ndarray) and argument.ndim:
        raise UsageError(
            f"{what} an array of the host, {argument.dtype} {argument.shape}; copy it to the device first: "
            "x = device.array(x), and x.numpy() back"
        )
    if isinstance(argument, np.ndarray):
        return argument[()]
    if isinstance(argument, (bytes, bytearray)):
        return np.void(bytes(argument))
    if isinstance(getattr(argument, "__cuda_array_interface__", None), dict):
        return _of_interface(argument.__cuda_array_interface__, memory)
    return argument


def _of_interface(fields: dict[str, Any], memory: DeviceMemory) -> DevicePointer:
    """The pointer of an array of another library. Raises `UsageError` if its memory is not this device's."""
    address = int(fields["data"][0])
    memory.find(address)
    strides = fields.get("strides")
    return DevicePointer(
        address, tuple(fields["shape"]), np.dtype(fields["typestr"]), None if strides is None else tuple(strides)
    )


def typed_scalar(argument: Any, parameter: Parameter) -> Any:
    """Give a Python number the type of its parameter where that is the only possible one."""
    if parameter.is_array or isinstance(argument, np.generic):
        return argument
    if isinstance(argument, bool):
        return argument if parameter.size_bytes == 1 or parameter.type.startswith("f") else int(argument)
    if isinstance(argument, (int, float)) and parameter.type in ("f32", "f64"):
        return np.float32(argument) if parameter.type == "f32" else np.float64(argument)
    return argument
