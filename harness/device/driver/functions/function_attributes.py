"""Attributes of kernels, and how many of their blocks a multiprocessor holds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, write_int, write_pointer
from harness.device.driver.functions.modules import Function
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.emulator.memory.residency import residency
from harness.support.errors import CompileError

MOST_THREADS = 1024
DEFAULT_DYNAMIC_SHARED_BYTES = 48 * 1024
DYNAMIC_SHARED = 8
"""The CUfunction_attribute for the maximum of dynamic shared memory."""
_REGISTERS_IF_UNKNOWN = 32
_WARP = 32


def static_shared_bytes(driver: Driver, function: Function) -> int:
    """Static shared memory of a block."""
    return driver.device.facts(function.compiled).shared_bytes


def most_threads(driver: Driver, function: Function) -> int:
    """Threads that a block may have: the kernel's own limit (`.maxntid`, `__launch_bounds__`), or the device's."""
    return driver.device.facts(function.compiled).most_threads or MOST_THREADS


def registers(driver: Driver, function: Function) -> int:
    """32-bit registers per thread, as ptxas assigns them; 32 without ptxas."""
    try:
        used = function.kernel.resources
    except CompileError:
        return _REGISTERS_IF_UNKNOWN
    return _REGISTERS_IF_UNKNOWN if used is None else used.registers


def resident_blocks(driver: Driver, function: Function, threads: int, dynamic_shared_bytes: int) -> int:
    """Blocks that one multiprocessor holds at a time."""
    shared = static_shared_bytes(driver, function) + dynamic_shared_bytes
    return residency(driver.gpu.multiprocessor, threads, registers(driver, function), shared).blocks


def most_dynamic_shared_bytes(driver: Driver, function: Function) -> int:
    """Dynamic shared memory that a launch may request."""
    default = DEFAULT_DYNAMIC_SHARED_BYTES - static_shared_bytes(driver, function)
    return function.attributes.get(DYNAMIC_SHARED, max(0, default))


def _attribute(driver: Driver, function: Function, number: int) -> int:
    if number == DYNAMIC_SHARED:
        return most_dynamic_shared_bytes(driver, function)
    if number in function.attributes:
        return function.attributes[number]
    facts: dict[int, Callable[[], int]] = {
        0: lambda: most_threads(driver, function),
        1: lambda: static_shared_bytes(driver, function),
        2: lambda: sum(v.size_bytes for v in function.owner.module.variables.values() if v.constant),
        3: lambda: driver.device.facts(function.compiled).local_bytes,
        4: lambda: registers(driver, function),
        5: lambda: int(driver.gpu.multiprocessor.arch.removeprefix("sm_")),
        6: lambda: int(driver.gpu.multiprocessor.arch.removeprefix("sm_")),
        9: lambda: -1,
    }
    if not 0 <= number < 16:
        raise DriverError(status.INVALID_VALUE)
    return facts[number]() if number in facts else 0


@driver_function("cuFuncGetAttribute", "pip")
@driver_function("cuKernelGetAttribute", "pipi")
def get_attribute(driver: Driver, value: int, number: int, function: int, device: int = 0) -> None:
    """An attribute of a kernel, on a device."""
    write_int(value, _attribute(driver, driver.of_handle(function, Function), number))


@driver_function("cuFuncSetAttribute", "pii")
def set_attribute(driver: Driver, function: int, number: int, value: int) -> None:
    """Change an attribute of a kernel."""
    found = driver.of_handle(function, Function)
    most = driver.gpu.multiprocessor.most_shared_bytes_per_block - static_shared_bytes(driver, found)
    if number == DYNAMIC_SHARED and not 0 <= value <= most:
        raise DriverError(
            status.INVALID_VALUE,
            f"kernel {found.kernel.name}: {value} bytes of dynamic shared memory are requested; this GPU has {most}",
        )
    found.attributes[number] = value


@driver_function("cuKernelSetAttribute", "iipi")
def set_kernel_attribute(driver: Driver, number: int, value: int, kernel: int, device: int) -> None:
    """Change an attribute of a kernel on a device."""
    set_attribute(driver, kernel, number, value)


@driver_function("cuFuncSetCacheConfig", "pi")
@driver_function("cuFuncSetSharedMemConfig", "pi")
@driver_function("cuKernelSetCacheConfig", "pii")
def set_configuration(driver: Driver, function: int, configuration: int, device: int = 0) -> None:
    """Change the preferred configuration, which has no effect on Hopper."""
    driver.of_handle(function, Function)


@driver_function("cuFuncGetModule", "pp")
def get_module(driver: Driver, module: int, function: int) -> int:
    """The module of a kernel."""
    found = driver.handle_of(driver.of_handle(function, Function).owner)
    write_pointer(module, found)
    return status.SUCCESS


@driver_function("cuFuncGetName", "pp")
@driver_function("cuKernelGetName", "pp")
def get_name(driver: Driver, name: int, function: int) -> None:
    """The mangled name of a kernel."""
    entry = driver.of_handle(function, Function).compiled.entry
    kept = driver.texts.setdefault(-function, ctypes.create_string_buffer(entry.encode()))
    write_pointer(name, ctypes.addressof(kept))


@driver_function("cuFuncGetParamInfo", "pppp")
@driver_function("cuKernelGetParamInfo", "pppp")
def parameter_info(driver: Driver, function: int, index: int, offset: int, size: int) -> int:
    """Offset and size of a parameter."""
    parameters = driver.of_handle(function, Function).kernel.parameters
    if index >= len(parameters):
        return status.INVALID_VALUE
    write_pointer(offset, parameters[index].offset)
    write_pointer(size, parameters[index].size_bytes)
    return status.SUCCESS


@driver_function("cuOccupancyMaxActiveBlocksPerMultiprocessor", "ppip")
@driver_function("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "ppipu")
def active_blocks(
    driver: Driver, count: int, function: int, threads: int, dynamic_shared_bytes: int, flags: int = 0
) -> None:
    """Blocks that one multiprocessor holds at a time."""
    write_int(count, resident_blocks(driver, driver.of_handle(function, Function), threads, dynamic_shared_bytes))


@driver_function("cuOccupancyMaxPotentialBlockSize", "pppppi")
@driver_function("cuOccupancyMaxPotentialBlockSizeWithFlags", "pppppiu")
def best_block_size(
    driver: Driver, grid: int, block: int, function: int, shared_of_block: int, dynamic_shared_bytes: int, limit: int,
    flags: int = 0,
) -> None:  # fmt: skip
    """The block size with the most resident threads, and the smallest grid that fills the device with it."""
    found = driver.of_handle(function, Function)
    limit = min(limit or MOST_THREADS, MOST_THREADS)
    shared: Callable[[int], int] = lambda threads: dynamic_shared_bytes  # noqa: E731
    if shared_of_block:
        shared = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int)(shared_of_block)
    best, best_blocks = 0, 0
    for threads in range(limit // _WARP * _WARP or limit, 0, -_WARP):
        blocks = resident_blocks(driver, found, threads, shared(threads))
        if threads * blocks > best * best_blocks:
            best, best_blocks = threads, blocks
    write_int(block, best)
    write_int(grid, best_blocks * driver.gpu.multiprocessors)
