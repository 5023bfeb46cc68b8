"""What the driver knows of a pointer."""

from __future__ import annotations

import ctypes

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, write_int, write_pointer
from harness.device.driver.process import Driver
from harness.device.memory import Allocation

_HOST, _DEVICE = 1, 2
_KIND, _ALLOCATION_NUMBER = 2, 7
_INTS = frozenset({_KIND, 6, 8, 9, 10, 13, 14, 15, 16, 21})
"""Attributes of 4 bytes or less; the others have 8."""


def _value(driver: Driver, number: int, found: Allocation, address: int) -> int | None:
    """The value of a `CUpointer_attribute`; None if it does not apply."""
    is_device_address = driver.device.memory.lookup(address) is found
    base = found.address if is_device_address else (found.host_address or 0)
    offset = address - base
    values = {
        1: driver.primary.handle,
        _KIND: _HOST if found.host_address is not None and not found.managed else _DEVICE,
        3: found.address + offset,
        4: None if found.host_address is None else found.host_address + offset,
        6: 0,
        _ALLOCATION_NUMBER: found.address,
        8: int(found.managed),
        9: 0,
        10: 0,
        11: found.address,
        12: found.size_bytes,
        13: 1,
        14: 0,
        15: 0,
        16: 3,  # readable and writable
        17: 0,
    }
    return values.get(number)


@driver_function("cuPointerGetAttribute", "pip")
def attribute(driver: Driver, result: int, number: int, address: int) -> int:
    """An attribute of a pointer."""
    found = driver.device.memory.lookup(address) or driver.device.memory.lookup_host(address)
    value = None if found is None else _value(driver, number, found, address)
    if value is None:
        return status.INVALID_VALUE
    _store(result, number, value)
    return status.SUCCESS


@driver_function("cuPointerGetAttributes", "uppp")
def attributes(driver: Driver, count: int, numbers: int, results: int, address: int) -> None:
    """Several attributes of a pointer; 0 for those that do not apply."""
    found = driver.device.memory.lookup(address) or driver.device.memory.lookup_host(address)
    for index in range(count):
        number = ctypes.c_int.from_address(numbers + 4 * index).value
        value = None if found is None else _value(driver, number, found, address)
        if value is None:
            value = -2 if number == 9 else 0  # no device: cudaInvalidDeviceId
        _store(ctypes.c_uint64.from_address(results + 8 * index).value, number, value)


def _store(result: int, number: int, value: int) -> None:
    if number in (6, 8, 10, 13, 15):
        ctypes.c_uint8.from_address(result).value = value
    elif number in _INTS:
        write_int(result, value)
    else:
        write_pointer(result, value)


@driver_function("cuPointerSetAttribute", "pip")
def set_attribute(driver: Driver, value: int, number: int, address: int) -> None:
    """Change an attribute, which has no effect here."""
