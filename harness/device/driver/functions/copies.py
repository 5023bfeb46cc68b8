"""Copies between host and device. All are complete when the call returns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.device.driver import status
from harness.device.driver.function_table import driver_function
from harness.device.driver.functions.memory import device_bytes
from harness.device.driver.functions.streams import also_in_stream
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.device.host_memory import bytes_at as bytes_at_host


def host_bytes(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory of the host as an array. Raises `DriverError` for a null pointer."""
    if not address:
        raise DriverError(status.INVALID_VALUE, "a copy from or to a null pointer")
    return bytes_at_host(address, size_bytes)


def bytes_at(driver: Driver, address: int, size_bytes: int, *, written: bool) -> npt.NDArray[np.uint8]:
    """Memory of the device or of the host, whichever the address belongs to."""
    if driver.device.memory.lookup(address) is not None:
        return device_bytes(driver, address, size_bytes, written=written)
    return host_bytes(address, size_bytes)


@driver_function("cuMemcpyHtoD_v2", "ppp")
@also_in_stream("cuMemcpyHtoDAsync_v2", "pppp")
def host_to_device(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy from the host to the device."""
    driver.context()
    if size_bytes:
        device_bytes(driver, target, size_bytes, written=True)[:] = bytes_at(driver, source, size_bytes, written=False)


@driver_function("cuMemcpyDtoH_v2", "ppp")
@also_in_stream("cuMemcpyDtoHAsync_v2", "pppp")
def device_to_host(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy from the device to the host."""
    driver.context()
    if size_bytes:
        bytes_at(driver, target, size_bytes, written=True)[:] = device_bytes(driver, source, size_bytes, written=False)


@driver_function("cuMemcpyDtoD_v2", "ppp")
@also_in_stream("cuMemcpyDtoDAsync_v2", "pppp")
def within_device(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy within the device."""
    driver.context()
    if size_bytes:
        content = device_bytes(driver, source, size_bytes, written=False)
        device_bytes(driver, target, size_bytes, written=True)[:] = content


@driver_function("cuMemcpy", "ppp")
@also_in_stream("cuMemcpyAsync", "pppp")
def copy(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy between any two places."""
    driver.context()
    if size_bytes:
        content = bytes_at(driver, source, size_bytes, written=False)
        bytes_at(driver, target, size_bytes, written=True)[:] = content


@driver_function("cuMemcpyPeer", "ppppp")
@also_in_stream("cuMemcpyPeerAsync", "pppppp")
def copy_peer(
    driver: Driver, target: int, target_context: int, source: int, source_context: int, size_bytes: int
) -> None:
    """Copy between two contexts."""
    copy(driver, target, source, size_bytes)
