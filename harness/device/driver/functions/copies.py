"""Copies between host and device. All are complete when the call returns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.device.driver import status
from harness.device.driver.function_table import driver_function
from harness.device.driver.functions.memory import device_bytes
from harness.device.driver.functions.streams import enqueue
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


def _to_device(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    driver.context()
    if size_bytes:
        device_bytes(driver, target, size_bytes, written=True)[:] = bytes_at(driver, source, size_bytes, written=False)


def _to_host(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    driver.context()
    if size_bytes:
        bytes_at(driver, target, size_bytes, written=True)[:] = device_bytes(driver, source, size_bytes, written=False)


def _within_device(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    driver.context()
    if size_bytes:
        content = device_bytes(driver, source, size_bytes, written=False)
        device_bytes(driver, target, size_bytes, written=True)[:] = content


def _anywhere(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    driver.context()
    if size_bytes:
        content = bytes_at(driver, source, size_bytes, written=False)
        bytes_at(driver, target, size_bytes, written=True)[:] = content


@driver_function("cuMemcpyHtoD_v2", "ppp")
def host_to_device(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy from the host to the device."""
    _to_device(driver, target, source, size_bytes)


@driver_function("cuMemcpyHtoDAsync_v2", "pppp")
def host_to_device_async(driver: Driver, target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy from the host to the device in the order of a stream."""
    enqueue(driver, stream, lambda: _to_device(driver, target, source, size_bytes))


@driver_function("cuMemcpyDtoH_v2", "ppp")
def device_to_host(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy from the device to the host."""
    _to_host(driver, target, source, size_bytes)


@driver_function("cuMemcpyDtoHAsync_v2", "pppp")
def device_to_host_async(driver: Driver, target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy from the device to the host in the order of a stream."""
    enqueue(driver, stream, lambda: _to_host(driver, target, source, size_bytes))


@driver_function("cuMemcpyDtoD_v2", "ppp")
def within_device(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy within the device."""
    _within_device(driver, target, source, size_bytes)


@driver_function("cuMemcpyDtoDAsync_v2", "pppp")
def within_device_async(driver: Driver, target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy within the device in the order of a stream."""
    enqueue(driver, stream, lambda: _within_device(driver, target, source, size_bytes))


@driver_function("cuMemcpy", "ppp")
def copy(driver: Driver, target: int, source: int, size_bytes: int) -> None:
    """Copy between any two places."""
    _anywhere(driver, target, source, size_bytes)


@driver_function("cuMemcpyAsync", "pppp")
def copy_async(driver: Driver, target: int, source: int, size_bytes: int, stream: int) -> None:
    """Copy between any two places in the order of a stream."""
    enqueue(driver, stream, lambda: _anywhere(driver, target, source, size_bytes))


@driver_function("cuMemcpyPeer", "ppppp")
def copy_peer(
    driver: Driver, target: int, target_context: int, source: int, source_context: int, size_bytes: int
) -> None:
    """Copy between two contexts."""
    _anywhere(driver, target, source, size_bytes)


@driver_function("cuMemcpyPeerAsync", "pppppp")
def copy_peer_async(
    driver: Driver, target: int, target_context: int, source: int, source_context: int, size_bytes: int, stream: int
) -> None:
    """Copy between two contexts in the order of a stream."""
    enqueue(driver, stream, lambda: _anywhere(driver, target, source, size_bytes))
