"""Device memory: allocation, sizes, and filling."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.device.driver import status
from harness.device.driver.attributes import MEMORY_BYTES
from harness.device.driver.function_table import driver_function, write_pointer
from harness.device.driver.functions.streams import also_in_stream
from harness.device.driver.graph import FILL
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.support.errors import SandboxError
from harness.support.memory import available_bytes

_PITCH_BYTES = 512


def device_bytes(driver: Driver, address: int, size_bytes: int, *, written: bool) -> npt.NDArray[np.uint8]:
    """A range of device memory as an array. `written` tells the sanitizer that the range is about to be written.

    Raises `UsageError` if the range is not in one allocation.
    """
    driver.device.synchronize()
    return driver.device.memory.view(address, size_bytes, written=written)


@driver_function("cuMemAlloc_v2", "pp")
def allocate(driver: Driver, address: int, size_bytes: int) -> int:
    """Allocate device memory."""
    driver.context()
    if not size_bytes:
        return status.INVALID_VALUE
    used = driver.device.memory.used_bytes
    if used + size_bytes > MEMORY_BYTES:
        raise DriverError(
            status.OUT_OF_MEMORY, f"{size_bytes:,} bytes do not fit: {used:,} of {MEMORY_BYTES:,} bytes are allocated"
        )
    try:
        write_pointer(address, driver.device.allocate(size_bytes, driver.new_name()))
    except SandboxError as error:
        raise DriverError(status.OUT_OF_MEMORY, str(error)) from error
    return status.SUCCESS


@driver_function("cuMemAllocPitch_v2", "ppppu")
def allocate_pitched(driver: Driver, address: int, pitch: int, width: int, height: int, element_bytes: int) -> int:
    """Allocate rows that begin at multiples of 512 bytes."""
    pitch_bytes = -(-width // _PITCH_BYTES) * _PITCH_BYTES
    write_pointer(pitch, pitch_bytes)
    return allocate(driver, address, pitch_bytes * height)


@driver_function("cuMemFree_v2", "p")
def free(driver: Driver, address: int) -> None:
    """Free device or managed memory."""
    driver.context()
    if address:
        driver.device.free(address)
        pool, size_bytes = driver.pooled.pop(address, (None, 0))
        if pool is not None:
            pool.used_bytes -= size_bytes


@driver_function("cuMemGetInfo_v2", "pp")
def memory_info(driver: Driver, free_bytes: int, total_bytes: int) -> None:
    """Free and total bytes of device memory."""
    driver.context()
    write_pointer(free_bytes, max(0, min(MEMORY_BYTES - driver.device.memory.used_bytes, available_bytes())))
    write_pointer(total_bytes, MEMORY_BYTES)


@driver_function("cuMemGetAddressRange_v2", "ppp")
def address_range(driver: Driver, base: int, size: int, address: int) -> int:
    """Beginning and size of the allocation that contains an address."""
    allocation = driver.device.memory.lookup(address)
    if allocation is None:
        return status.NOT_FOUND
    write_pointer(base, allocation.address)
    write_pointer(size, allocation.size_bytes)
    return status.SUCCESS


def _fill(driver: Driver, address: int, value: int, dtype: type[np.generic], count: int) -> None:
    driver.context()
    if count:
        device_bytes(driver, address, count * np.dtype(dtype).itemsize, written=True).view(dtype)[:] = value


def _fill_rows(
    driver: Driver, address: int, pitch: int, value: int, dtype: type[np.generic], width: int, height: int
) -> None:
    for row in range(height):
        _fill(driver, address + pitch * row, value, dtype, width)


def fill_box(driver: Driver, address: int, pitch: int, value: int, element_bytes: int, width: int, height: int) -> None:
    """Fill rows with the low bytes of a value. Raises `DriverError` for another width than 1, 2 or 4 bytes."""
    types = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    if element_bytes not in types:
        raise DriverError(status.INVALID_VALUE)
    element = types[element_bytes]
    _fill_rows(driver, address, pitch, value & ((1 << 8 * element_bytes) - 1), element, width, height)


@driver_function("cuMemsetD8_v2", "pcp")
@also_in_stream("cuMemsetD8Async", "pcpp", FILL)
def fill_bytes(driver: Driver, address: int, value: int, count: int) -> None:
    """Fill with a byte."""
    _fill(driver, address, value, np.uint8, count)


@driver_function("cuMemsetD16_v2", "psp")
@also_in_stream("cuMemsetD16Async", "pspp", FILL)
def fill_halves(driver: Driver, address: int, value: int, count: int) -> None:
    """Fill with a 16-bit value."""
    _fill(driver, address, value, np.uint16, count)


@driver_function("cuMemsetD32_v2", "pup")
@also_in_stream("cuMemsetD32Async", "pupp", FILL)
def fill_words(driver: Driver, address: int, value: int, count: int) -> None:
    """Fill with a 32-bit value."""
    _fill(driver, address, value, np.uint32, count)


@driver_function("cuMemsetD2D8_v2", "ppcpp")
@also_in_stream("cuMemsetD2D8Async", "ppcppp", FILL)
def fill_byte_rows(driver: Driver, address: int, pitch: int, value: int, width: int, height: int) -> None:
    """Fill rows with a byte."""
    _fill_rows(driver, address, pitch, value, np.uint8, width, height)


@driver_function("cuMemsetD2D32_v2", "ppupp")
def fill_word_rows(driver: Driver, address: int, pitch: int, value: int, width: int, height: int) -> None:
    """Fill rows with a 32-bit value."""
    _fill_rows(driver, address, pitch, value, np.uint32, width, height)
