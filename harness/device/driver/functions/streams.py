"""Streams. Work is complete when the call that issues it returns, so streams have no effect on the order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, host_function, write_int, write_pointer
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

_DEFAULT_STREAMS = (0, 1, 2)
"""Null, the legacy default stream, and the default stream of a thread."""


@dataclass(eq=False)
class UserObject:
    """An object of the program, which is told when nothing refers to it."""

    release: Callable[[], None]
    references: int


@dataclass(eq=False)
class Graph:
    """Work in the order of its execution."""

    work: list[Callable[[], None]] = field(default_factory=list)
    origin: Stream | None = None
    """The stream that records it."""
    objects: list[UserObject] = field(default_factory=list)
    """Objects of the program that it refers to, once for each reference."""
    joined: list[Stream] = field(default_factory=list)
    """Streams that record it since they waited for an event of a recording stream."""


@dataclass(eq=False)
class Stream:
    """A stream."""

    flags: int
    priority: int
    graph: Graph | None = None
    """The graph that it records."""


_DEFAULT = Stream(0, 0)


def stream_of(driver: Driver, handle: int) -> Stream:
    """The stream with a handle. Raises `DriverError` if there is none, or if a kernel has failed."""
    driver.context()
    return _DEFAULT if handle in _DEFAULT_STREAMS else driver.of_handle(handle, Stream)


def enqueue(driver: Driver, handle: int, work: Callable[[], None]) -> None:
    """Execute work in the order of a stream: now, or with the graph that the stream records."""
    graph = stream_of(driver, handle).graph
    if graph is None:
        work()
    else:
        graph.work.append(work)


@driver_function("cuStreamCreate", "pu")
def create(driver: Driver, stream: int, flags: int) -> None:
    """Create a stream."""
    driver.context()
    write_pointer(stream, driver.new_handle(Stream(flags, 0)))


@driver_function("cuStreamCreateWithPriority", "pui")
def create_with_priority(driver: Driver, stream: int, flags: int, priority: int) -> None:
    """Create a stream with a priority."""
    driver.context()
    write_pointer(stream, driver.new_handle(Stream(flags, max(-5, min(0, priority)))))


@driver_function("cuStreamDestroy_v2", "p")
def destroy(driver: Driver, handle: int) -> None:
    """Destroy a stream."""
    driver.remove_handle(handle, Stream)


@driver_function("cuStreamSynchronize", "p")
@driver_function("cuStreamQuery", "p")
def synchronize(driver: Driver, handle: int) -> None:
    """Wait for a stream, or ask whether it is idle, which it is."""
    if stream_of(driver, handle).graph is not None:
        raise DriverError(status.STREAM_CAPTURE_UNSUPPORTED, "a stream that records a graph cannot be waited for")


@driver_function("cuStreamGetFlags", "pp")
def flags(driver: Driver, handle: int, result: int) -> None:
    """The flags of a stream."""
    write_int(result, stream_of(driver, handle).flags)


@driver_function("cuStreamGetPriority", "pp")
def priority(driver: Driver, handle: int, result: int) -> None:
    """The priority of a stream."""
    write_int(result, stream_of(driver, handle).priority)


@driver_function("cuStreamGetId", "pp")
def identifier(driver: Driver, handle: int, result: int) -> None:
    """A number that identifies a stream."""
    stream_of(driver, handle)
    write_pointer(result, handle)


@driver_function("cuStreamGetCtx", "pp")
def context(driver: Driver, handle: int, result: int) -> None:
    """The context of a stream."""
    write_pointer(result, driver.context().handle)


@driver_function("cuStreamGetDevice", "pp")
def device(driver: Driver, handle: int, result: int) -> None:
    """The device of a stream."""
    write_int(result, 0)


@driver_function("cuStreamAddCallback", "pppu")
def add_callback(driver: Driver, handle: int, callback: int, data: int, flags: int) -> None:
    """Call a function of the host after the work in a stream, which is complete."""
    stream_of(driver, handle)
    ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)(callback)(handle, status.SUCCESS, data)


@driver_function("cuLaunchHostFunc", "ppp")
def launch_host_function(driver: Driver, handle: int, function: int, data: int) -> None:
    """Call a function of the host in the order of a stream."""
    enqueue(driver, handle, lambda: host_function(function, "p")(data))


@driver_function("cuStreamAttachMemAsync", "pppu")
def attach_memory(driver: Driver, handle: int, address: int, size_bytes: int, flags: int) -> None:
    """Attach managed memory to a stream, which has no effect here."""
