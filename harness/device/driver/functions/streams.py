"""Streams. Work is complete when the call that issues it returns, so streams have no effect on the order."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, host_function, write_int, write_pointer
from harness.device.driver.process import Driver

_DEFAULT_STREAMS = (0, 1, 2)
"""Null, the legacy default stream, and the default stream of a thread."""


@dataclass(eq=False)
class Stream:
    """A stream."""

    flags: int
    priority: int


_DEFAULT = Stream(0, 0)


def stream_of(driver: Driver, handle: int) -> Stream:
    """The stream with a handle. Raises `DriverError` if there is none, or if a kernel has failed."""
    driver.context()
    return _DEFAULT if handle in _DEFAULT_STREAMS else driver.of_handle(handle, Stream)


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
    stream_of(driver, handle)


@driver_function("cuStreamWaitEvent", "ppu")
def wait_event(driver: Driver, handle: int, event: int, flags: int) -> None:
    """Let a stream wait for an event, which has happened."""
    stream_of(driver, handle)


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


@driver_function("cuStreamIsCapturing", "pp")
def is_capturing(driver: Driver, handle: int, result: int) -> None:
    """Whether a stream records a graph. Graphs are not supported, so it never does."""
    write_int(result, 0)


@driver_function("cuStreamGetCaptureInfo_v2", "pppppp", since=11030)
@driver_function("cuStreamGetCaptureInfo_v3", "ppppppp", since=12030)
def capture_info(driver: Driver, handle: int, result: int, *others: int) -> None:
    """The recording of a stream: none."""
    write_int(result, 0)


@driver_function("cuThreadExchangeStreamCaptureMode", "p")
def exchange_capture_mode(driver: Driver, mode: int) -> None:
    """Set the mode of capturing, and return the old one."""


@driver_function("cuStreamAddCallback", "pppu")
def add_callback(driver: Driver, handle: int, callback: int, data: int, flags: int) -> None:
    """Call a function of the host after the work in a stream, which is complete."""
    stream_of(driver, handle)
    ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)(callback)(handle, status.SUCCESS, data)


@driver_function("cuLaunchHostFunc", "ppp")
def launch_host_function(driver: Driver, handle: int, function: int, data: int) -> None:
    """Call a function of the host in the order of a stream."""
    stream_of(driver, handle)
    host_function(function, "p")(data)


@driver_function("cuStreamAttachMemAsync", "pppu")
def attach_memory(driver: Driver, handle: int, address: int, size_bytes: int, flags: int) -> None:
    """Attach managed memory to a stream, which has no effect here."""
