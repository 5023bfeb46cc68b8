"""Memory that host and device share: pinned, registered and managed."""

from __future__ import annotations

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, write_int, write_pointer
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.support.errors import SandboxError

_HOST, _DEVICE = -1, 0
_PLACES = (_HOST, _DEVICE)
_ADVICE = range(1, 7)


def _allocate(driver: Driver, address: int, size_bytes: int, *, managed: bool) -> int:
    driver.context()
    if not size_bytes:
        return status.INVALID_VALUE
    memory = driver.device.memory
    try:
        allocation = memory.allocate_shared(size_bytes, driver.new_name(), managed=managed)
    except SandboxError as error:
        raise DriverError(status.OUT_OF_MEMORY, str(error)) from error
    write_pointer(address, memory.keep(allocation))
    return status.SUCCESS


def _free(driver: Driver, address: int, otherwise: int) -> None:
    """Free what begins at an address of the host. Raises `DriverError` with the status `otherwise` if nothing does."""
    allocation = driver.device.memory.lookup_host(address)
    if allocation is None or allocation.host_address != address:
        raise DriverError(otherwise, f"no pinned, registered or managed memory begins at address {address:#x}")
    driver.device.free(allocation.address)


@driver_function("cuMemAllocHost_v2", "pp")
@driver_function("cuMemHostAlloc", "ppu")
def allocate_host(driver: Driver, address: int, size_bytes: int, flags: int = 0) -> int:
    """Allocate pinned memory of the host. It is always mapped."""
    return _allocate(driver, address, size_bytes, managed=False)


@driver_function("cuMemAllocManaged", "ppu")
def allocate_managed(driver: Driver, address: int, size_bytes: int, flags: int) -> int:
    """Allocate managed memory."""
    return _allocate(driver, address, size_bytes, managed=True)


@driver_function("cuMemFreeHost", "p")
def free_host(driver: Driver, address: int) -> None:
    """Free pinned memory."""
    _free(driver, address, status.INVALID_VALUE)


@driver_function("cuMemHostRegister_v2", "ppu")
def register(driver: Driver, address: int, size_bytes: int, flags: int) -> int:
    """Map memory of the host into the device's address space."""
    driver.context()
    if not address or not size_bytes:
        return status.INVALID_VALUE
    if driver.device.memory.lookup_host(address) is not None:
        raise DriverError(
            status.HOST_MEMORY_ALREADY_REGISTERED, f"the memory at {address:#x} is pinned or registered already"
        )
    memory = driver.device.memory
    memory.keep(memory.register(address, size_bytes, driver.new_name()))
    return status.SUCCESS


@driver_function("cuMemHostUnregister", "p")
def unregister(driver: Driver, address: int) -> None:
    """Undo `cuMemHostRegister`."""
    _free(driver, address, status.HOST_MEMORY_NOT_REGISTERED)


@driver_function("cuMemHostGetDevicePointer_v2", "ppu")
def device_pointer(driver: Driver, result: int, address: int, flags: int) -> int:
    """The device address of pinned or registered memory."""
    allocation = driver.device.memory.lookup_host(address)
    if allocation is None or allocation.host_address is None:
        return status.INVALID_VALUE
    write_pointer(result, allocation.address + address - allocation.host_address)
    return status.SUCCESS


@driver_function("cuMemHostGetFlags", "pp")
def host_flags(driver: Driver, flags: int, address: int) -> int:
    """The flags of pinned memory."""
    if driver.device.memory.lookup_host(address) is None:
        return status.INVALID_VALUE
    write_int(flags, 2)  # mapped
    return status.SUCCESS


@driver_function("cuMemPrefetchAsync", "ppip")
def prefetch(driver: Driver, address: int, size_bytes: int, device: int, stream: int) -> int:
    """Move managed memory to a device or the host, which has no effect here."""
    return status.SUCCESS if device in _PLACES else status.INVALID_DEVICE


@driver_function("cuMemPrefetchAsync_v2", "pppup", since=12020)
def prefetch_to(driver: Driver, address: int, size_bytes: int, location: int, flags: int, stream: int) -> None:
    """Move managed memory to a location, which has no effect here."""


@driver_function("cuMemAdvise", "ppii")
def advise(driver: Driver, address: int, size_bytes: int, advice: int, device: int) -> int:
    """Advise how managed memory will be used, which has no effect here."""
    return status.SUCCESS if advice in _ADVICE else status.INVALID_VALUE


@driver_function("cuMemAdvise_v2", "ppip", since=12020)
def advise_location(driver: Driver, address: int, size_bytes: int, advice: int, location: int) -> None:
    """Advise how managed memory will be used, which has no effect here."""
