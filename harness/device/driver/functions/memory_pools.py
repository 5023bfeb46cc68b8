"""Memory pools. Freed memory is not held back, so a pool only has a handle and attributes."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from harness.device.driver.function_table import driver_function, write_int, write_pointer
from harness.device.driver.functions.devices import require_device
from harness.device.driver.functions.memory import allocate
from harness.device.driver.functions.streams import stream_of
from harness.device.driver.process import Driver

_INTS = frozenset({1, 2, 3})
"""Attributes of 4 bytes: which reuse of memory is allowed. The others have 8."""
_USED_ATTRIBUTES = (5, 6, 7, 8)
"""Attributes for reserved and used bytes, and their maxima."""
_READ_WRITE = 3


@dataclass(eq=False)
class MemoryPool:
    """A pool."""

    attributes: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 1, 3: 1})


def _default(driver: Driver) -> MemoryPool:
    pool = driver.default_pool
    if not isinstance(pool, MemoryPool):
        pool = driver.default_pool = driver.current_pool = MemoryPool()
        driver.new_handle(pool)
    return pool


@driver_function("cuDeviceGetDefaultMemPool", "pi")
def default_pool(driver: Driver, pool: int, device: int) -> None:
    """The pool that a device has from the beginning."""
    require_device(driver, device)
    write_pointer(pool, driver.handle_of(_default(driver)))


@driver_function("cuDeviceGetMemPool", "pi")
def current_pool(driver: Driver, pool: int, device: int) -> None:
    """The pool of `cuMemAllocAsync`."""
    require_device(driver, device)
    _default(driver)
    write_pointer(pool, driver.handle_of(driver.current_pool))


@driver_function("cuDeviceSetMemPool", "ip")
def set_current_pool(driver: Driver, device: int, pool: int) -> None:
    """Set the pool of `cuMemAllocAsync`."""
    require_device(driver, device)
    _default(driver)
    driver.current_pool = driver.of_handle(pool, MemoryPool)


@driver_function("cuMemPoolCreate", "pp")
def create(driver: Driver, pool: int, properties: int) -> None:
    """Create a pool. Its properties have no effect here."""
    driver.context()
    write_pointer(pool, driver.new_handle(MemoryPool()))


@driver_function("cuMemPoolDestroy", "p")
def destroy(driver: Driver, pool: int) -> None:
    """Destroy a pool. What was allocated from it stays."""
    driver.remove_handle(pool, MemoryPool)


@driver_function("cuMemPoolTrimTo", "pp")
def trim(driver: Driver, pool: int, size_bytes: int) -> None:
    """Release memory that a pool holds back, which is none."""
    driver.of_handle(pool, MemoryPool)


@driver_function("cuMemPoolSetAttribute", "pip")
def set_attribute(driver: Driver, pool: int, number: int, value: int) -> None:
    """Change an attribute of a pool."""
    kind = ctypes.c_int32 if number in _INTS else ctypes.c_uint64
    driver.of_handle(pool, MemoryPool).attributes[number] = kind.from_address(value).value


@driver_function("cuMemPoolGetAttribute", "pip")
def get_attribute(driver: Driver, pool: int, number: int, value: int) -> None:
    """An attribute of a pool. The bytes that it has in use are those of the device."""
    found = driver.of_handle(pool, MemoryPool).attributes.get(number, 0)
    if number in _USED_ATTRIBUTES:
        found = max(found, driver.device.memory.used_bytes)
    (write_int if number in _INTS else write_pointer)(value, found)


@driver_function("cuMemPoolSetAccess", "ppp")
def set_access(driver: Driver, pool: int, descriptors: int, count: int) -> None:
    """Let devices access a pool, of which there is one."""
    driver.of_handle(pool, MemoryPool)


@driver_function("cuMemPoolGetAccess", "ppp")
def get_access(driver: Driver, flags: int, pool: int, location: int) -> None:
    """How a device may access a pool."""
    driver.of_handle(pool, MemoryPool)
    write_int(flags, _READ_WRITE)


@driver_function("cuMemAllocFromPoolAsync", "pppp")
def allocate_from_pool(driver: Driver, address: int, size_bytes: int, pool: int, stream: int) -> int:
    """Allocate from a pool in the order of a stream."""
    driver.of_handle(pool, MemoryPool)
    stream_of(driver, stream)
    return allocate(driver, address, size_bytes)
