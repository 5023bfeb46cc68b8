"""Launches of kernels. A launch has finished when the call returns, and so returns the kernel's own failure."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

from harness.device.driver import status
from harness.device.driver.function_table import driver_function
from harness.device.driver.functions.function_attributes import (
    most_dynamic_shared_bytes,
    most_threads,
)
from harness.device.driver.functions.modules import Function
from harness.device.driver.functions.streams import enqueue
from harness.device.driver.graph import KERNEL, Node
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError
from harness.support.errors import (
    ClusterTooLarge,
    CooperativeLaunchTooLarge,
    KernelFault,
    TooManyRegisters,
    UsageError,
)

_FAULTS = {
    "out of bounds": status.ILLEGAL_ADDRESS,
    "read-only memory": status.ILLEGAL_ADDRESS,
    "misaligned": status.MISALIGNED_ADDRESS,
    "barrier deadlock": status.LAUNCH_TIMEOUT,
    "step limit": status.LAUNCH_TIMEOUT,
    "tensor coordinate": status.ILLEGAL_INSTRUCTION,
    "no tensor map": status.ILLEGAL_INSTRUCTION,
    "tensor map field": status.ILLEGAL_INSTRUCTION,
    "assertion": status.ASSERT,
    "stack overflow": status.HARDWARE_STACK_ERROR,
}
"""Status by kind of fault; a GPU would hang where it is `LAUNCH_TIMEOUT`. Other faults are `LAUNCH_FAILED`."""
_REFUSALS = (
    (CooperativeLaunchTooLarge, status.COOPERATIVE_LAUNCH_TOO_LARGE), (ClusterTooLarge, status.INVALID_CLUSTER_SIZE),
    (TooManyRegisters, status.LAUNCH_OUT_OF_RESOURCES),
)  # fmt: skip
"""Status of launches that the device refuses. Others are `INVALID_VALUE`."""
_COOPERATIVE, _CLUSTER, _OVERLAPS_PREVIOUS = 2, 4, 6
"""Kinds of launch attributes."""
_ATTRIBUTE_BYTES, _VALUE_AT = 72, 8
_BUFFER, _BUFFER_SIZE = 1, 2
"""Keys of the list `extra`."""


class Extents(NamedTuple):
    """Grid, block and more of a launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    overlaps_previous: bool = False


def _words(address: int, count: int) -> tuple[int, ...]:
    return tuple((ctypes.c_uint32 * count).from_address(address))


def _pointers(address: int) -> Iterator[int]:
    while True:
        yield ctypes.c_uint64.from_address(address).value
        address += 8


def _parameters(function: Function, pointers: int, extra: int) -> list[bytes] | bytes:
    """The bytes of each parameter, or their block. Raises `DriverError` if they are not given."""
    declared = function.kernel.parameters
    if pointers:
        return [ctypes.string_at(at, each.size_bytes) for each, at in zip(declared, _pointers(pointers))]
    if extra:
        given = _pointers(extra)
        items = dict(zip(iter(lambda: next(given), 0), given))
        if _BUFFER not in items or _BUFFER_SIZE not in items:
            raise DriverError(status.INVALID_VALUE)
        size = ctypes.c_size_t.from_address(items[_BUFFER_SIZE]).value
        return ctypes.string_at(items[_BUFFER], size)
    if declared:
        raise DriverError(status.INVALID_VALUE, f"kernel {function.kernel.name} is launched without its arguments")
    return b""


def _check_shared_bytes(driver: Driver, function: Function, shared_bytes: int) -> None:
    """Raise `DriverError` for more dynamic shared memory than the kernel may use."""
    most_shared = most_dynamic_shared_bytes(driver, function)
    if shared_bytes > most_shared:
        raise DriverError(
            status.INVALID_VALUE,
            f"kernel {function.kernel.name}: {shared_bytes} bytes of dynamic shared memory, of which it may use "
            f"{most_shared}; more has to be requested (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)",
        )


def _launch(driver: Driver, handle: int, extents: Extents, stream: int, pointers: int, extra: int) -> None:
    node = launch_node(driver, handle, extents, pointers, extra)
    enqueue(driver, stream, node.work, node.kind, node.name, node.details)


def launch_node(driver: Driver, handle: int, extents: Extents, pointers: int, extra: int) -> Node:
    """A node that launches a kernel with copies of its arguments. Raises `DriverError` for a wrong launch."""
    context = driver.context()
    function = driver.of_handle(handle, Function)
    _check_shared_bytes(driver, function, extents.shared_bytes)
    if math.prod(extents.block) > most_threads(driver, function):
        raise DriverError(
            status.INVALID_VALUE,
            f"kernel {function.kernel.name}: a block of {math.prod(extents.block)} threads, of which it may have "
            f"{most_threads(driver, function)} (its launch bounds)",
        )
    given = _parameters(function, pointers, extra)

    def run() -> None:
        try:
            result = driver.device.launch_packed(
                function.kernel,
                extents.grid,
                extents.block,
                given,
                extents.shared_bytes,
                extents.cluster,
                cooperative=extents.cooperative,
                overlaps_previous=extents.overlaps_previous,
            )
        except UsageError as error:
            for cause, code in _REFUSALS:
                if isinstance(error.__cause__, cause):
                    raise DriverError(code, str(error)) from error
            raise
        except KernelFault as fault:
            context.failed = _FAULTS.get(fault.kind, status.LAUNCH_FAILED)
            driver.log.add_fault(function.kernel.name, fault.findings)
            raise DriverError(context.failed, str(fault)) from fault
        driver.log.add(result)

    details = f"grid {extents.grid}, block {extents.block}"
    return Node(KERNEL, run, name=function.kernel.name, details=details)


@driver_function("cuLaunchKernel", "puuuuuuuppp")
def launch(
    driver: Driver,
    function: int,
    grid_x: int,
    grid_y: int,
    grid_z: int,
    block_x: int,
    block_y: int,
    block_z: int,
    shared_bytes: int,
    stream: int,
    parameters: int,
    extra: int = 0,
    *,
    cooperative: bool = False,
) -> None:
    """Launch a kernel. All blocks of a cooperative one are resident."""
    grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
    extents = Extents(grid, block, shared_bytes, cooperative=cooperative)
    _launch(driver, function, extents, stream, parameters, extra)


driver_function("cuLaunchCooperativeKernel", "puuuuuuupp")(functools.partial(launch, cooperative=True))


class _Configuration(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared_bytes", ctypes.c_uint32),
        ("stream", ctypes.c_uint64), ("attributes", ctypes.c_uint64), ("count", ctypes.c_uint32),
    ]  # fmt: skip


@driver_function("cuLaunchKernelEx", "pppp")
def launch_with_attributes(driver: Driver, configuration: int, function: int, parameters: int, extra: int) -> None:
    """Launch a kernel with attributes, such as the extents of its clusters.

    Programmatic stream serialization matters to the sanitizer alone. Other attributes for scheduling have no effect.
    """
    config = _Configuration.from_address(configuration)
    cluster, cooperative, overlaps_previous = None, False, False
    for index in range(config.count):
        attribute = config.attributes + _ATTRIBUTE_BYTES * index
        (kind,) = _words(attribute, 1)
        if kind == _CLUSTER:
            x, y, z = _words(attribute + _VALUE_AT, 3)
            cluster = (x, y, z)
        elif kind == _COOPERATIVE:
            cooperative = bool(_words(attribute + _VALUE_AT, 1)[0])
        elif kind == _OVERLAPS_PREVIOUS:
            overlaps_previous = bool(_words(attribute + _VALUE_AT, 1)[0])
    grid, block = tuple(config.grid), tuple(config.block)
    extents = Extents(grid, block, config.shared_bytes, cluster, cooperative, overlaps_previous)
    _launch(driver, function, extents, config.stream, parameters, extra)
