"""Memory pools. Freed memory is not held back; a pool only counts what a GPU's would."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

from harness.device.driver.function_table import driver_function, write_int, write_pointer
from harness.device.driver.functions.devices import require_device
from harness.device.driver.functions.memory import allocate, free
from harness.device.driver.functions.streams import stream_of
from harness.device.driver.graph import UserObject
from harness.device.driver.process import Driver

_INTS = frozenset({1, 2, 3})
"""Attributes of 4 bytes: which reuse of memory is allowed. The others have 8."""
_RESERVED, _MOST_RESERVED, _USED, _MOST_USED = 5, 6, 7, 8
_CHUNK_BYTES = 32 << 20
"""A pool reserves multiples of this size."""
_READ_WRITE = 3


@dataclass(eq=False)
class MemoryPool:
    """A pool."""

    attributes: dict[int, int] = field(default_factory=lambda: {1: 1, 2: 1, 3: 1})
    used_bytes: int = 0
    most_used_bytes: int = 0
    reserved_bytes: int = 0
    """Of memory that was allocated since the pool was trimmed last."""

    def count(self, size_bytes: int) -> None:
        """Count an allocation."""
        self.used_bytes += size_bytes
        self.most_used_bytes = max(self.most_used_bytes, self.used_bytes)
        self.reserved_bytes = max(self.reserved_bytes, _in_chunks(self.used_bytes))

    def trim(self, size_bytes: int) -> None:
        """Release what is not used, but for this many bytes."""
        self.reserved_bytes = min(self.reserved_bytes, _in_chunks(max(self.used_bytes, size_bytes)))


def _in_chunks(size_bytes: int) -> int:
    return -(-size_bytes // _CHUNK_BYTES) * _CHUNK_BYTES


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
    """Release memory that a pool holds back."""
    driver.of_handle(pool, MemoryPool).trim(size_bytes)


@driver_function("cuMemPoolSetAttribute", "pip")
def set_attribute(driver: Driver, pool: int, number: int, value: int) -> None:
    """Change an attribute of a pool."""
    kind = ctypes.c_int32 if number in _INTS else ctypes.c_uint64
    driver.of_handle(pool, MemoryPool).attributes[number] = kind.from_address(value).value


@driver_function("cuMemPoolGetAttribute", "pip")
def get_attribute(driver: Driver, pool: int, number: int, value: int) -> None:
    """An attribute of a pool."""
    found = driver.of_handle(pool, MemoryPool)
    counted = {
        _RESERVED: found.reserved_bytes,
        _MOST_RESERVED: max(found.reserved_bytes, _in_chunks(found.most_used_bytes)),
        _USED: found.used_bytes,
        _MOST_USED: found.most_used_bytes,
    }
    content = counted.get(number, found.attributes.get(number, 0))
    (write_int if number in _INTS else write_pointer)(value, content)


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
    return _allocate(driver, address, size_bytes, driver.of_handle(pool, MemoryPool), stream)


@driver_function("cuMemAllocAsync", "ppp")
def allocate_async(driver: Driver, address: int, size_bytes: int, stream: int) -> int:
    """Allocate device memory in the order of a stream, from the device's current pool."""
    _default(driver)
    return _allocate(driver, address, size_bytes, driver.current_pool, stream)


def _allocate(driver: Driver, address: int, size_bytes: int, pool: MemoryPool, stream: int) -> int:
    stream_of(driver, stream)
    failed = allocate(driver, address, size_bytes)
    if not failed:
        pool.count(size_bytes)
        driver.pooled[ctypes.c_uint64.from_address(address).value] = (pool, size_bytes)
    return failed


@driver_function("cuMemFreeAsync", "pp")
def free_async(driver: Driver, address: int, stream: int) -> None:
    """Free device memory in the order of a stream. Recorded, it is freed with the graph, whose kernels use it."""
    graph = stream_of(driver, stream).graph
    if graph is None:
        free(driver, address)
    else:
        graph.objects.append(UserObject(lambda: free(driver, address), 1))
