"""Tensor maps of a device's arrays."""

from __future__ import annotations

from dataclasses import dataclass

from harness.device.array import DeviceArray


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
