"""The device: its name, attributes and memory."""

from __future__ import annotations

import ctypes
import hashlib

from harness.device.driver import status
from harness.device.driver.attributes import MEMORY_BYTES, device_attribute, device_name
from harness.device.driver.attributes import compute_capability as capability_of
from harness.device.driver.function_table import driver_function, read_text, write_int, write_pointer
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

_BUS_ID = "0000:00:01.0"


def require_device(driver: Driver, device: int) -> None:
    """Raise `DriverError` unless the driver is initialized and has this device."""
    if not driver.initialized:
        raise DriverError(status.NOT_INITIALIZED)
    if device != 0:
        raise DriverError(status.INVALID_DEVICE, f"there is no device {device}; the only one is device 0")


def write_text(address: int, capacity: int, text: str) -> None:
    """Store a C string in a buffer of the caller, truncated to its capacity."""
    content = text.encode()[: max(0, capacity - 1)] + b"\0"
    ctypes.memmove(address, content, len(content))


@driver_function("cuDeviceGet", "pi")
def get_device(driver: Driver, device: int, ordinal: int) -> None:
    """The device with an ordinal."""
    require_device(driver, ordinal)
    write_int(device, 0)


@driver_function("cuDeviceGetCount", "p")
def device_count(driver: Driver, count: int) -> None:
    """The number of devices."""
    require_device(driver, 0)
    write_int(count, 1)


@driver_function("cuDeviceGetName", "pii")
def name(driver: Driver, text: int, capacity: int, device: int) -> None:
    """The device's name."""
    require_device(driver, device)
    write_text(text, capacity, device_name(driver.gpu))


@driver_function("cuDeviceGetUuid", "pi")
@driver_function("cuDeviceGetUuid_v2", "pi", since=11040)
def uuid(driver: Driver, identifier: int, device: int) -> None:
    """The device's UUID, which is derived from its name."""
    require_device(driver, device)
    ctypes.memmove(identifier, hashlib.sha256(device_name(driver.gpu).encode()).digest(), 16)


@driver_function("cuDeviceTotalMem_v2", "pi")
def total_memory(driver: Driver, size: int, device: int) -> None:
    """The size of device memory in bytes."""
    require_device(driver, device)
    write_pointer(size, MEMORY_BYTES)


@driver_function("cuDeviceGetAttribute", "pii")
def attribute(driver: Driver, value: int, number: int, device: int) -> int:
    """An attribute of the device."""
    require_device(driver, device)
    found = device_attribute(driver.gpu, number)
    if found is None:
        return status.INVALID_VALUE
    write_int(value, found)
    return status.SUCCESS


@driver_function("cuDeviceComputeCapability", "ppi")
def compute_capability(driver: Driver, major: int, minor: int, device: int) -> None:
    """The compute capability."""
    require_device(driver, device)
    for place, number in zip((major, minor), capability_of(driver.gpu)):
        write_int(place, number)


@driver_function("cuDeviceGetPCIBusId", "pii")
def bus_id(driver: Driver, text: int, capacity: int, device: int) -> None:
    """The device's place on the PCI bus."""
    require_device(driver, device)
    write_text(text, capacity, _BUS_ID)


@driver_function("cuDeviceGetByPCIBusId", "pp")
def by_bus_id(driver: Driver, device: int, text: int) -> int:
    """The device at a place on the PCI bus."""
    if read_text(text) != _BUS_ID:
        return status.INVALID_DEVICE
    write_int(device, 0)
    return status.SUCCESS


@driver_function("cuDeviceCanAccessPeer", "pii")
def can_access_peer(driver: Driver, result: int, device: int, peer: int) -> None:
    """Whether a device can access the memory of another one."""
    write_int(result, 0)
