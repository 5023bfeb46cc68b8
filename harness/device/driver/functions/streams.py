"""Streams. Work is complete when the call that issues it returns, so streams have no effect on the order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, host_function, write_int, write_pointer
from harness.device.driver.graph import COPY, HOST, KERNEL, Graph, Node, Recording
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

Work = TypeVar("Work", bound=Callable[..., None])

_LEGACY, _NON_BLOCKING = (0, 1), 1
_DEFAULT_STREAMS = (0, 1, 2)
"""Null, the legacy default stream, and the default stream of a thread."""


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


def recording_of(stream: Stream) -> Recording | None:
    """How a stream records a graph; None if it does not."""
    return None if stream.graph is None else stream.graph.recording


def implicit_recording(driver: Driver, handle: int) -> Recording | None:
    """The recording of a stream for which the legacy default stream waits, if the handle is that stream's."""
    if handle in _LEGACY:
        for recording in driver.recordings:
            if any(not stream.flags & _NON_BLOCKING for stream in (recording.origin, *recording.joined)):
                found: Recording = recording
                return found
    return None


def is_recording(driver: Driver, handle: int) -> bool:
    """Whether the stream with a handle records a graph."""
    return handle not in _DEFAULT_STREAMS and driver.of_handle(handle, Stream).graph is not None


def enqueue(
    driver: Driver, handle: int, work: Callable[[], None], kind: int = COPY, name: str = "", details: str = ""
) -> None:
    """Execute work in the order of a stream: now, or as a node of this kind of the graph that the stream records."""
    stream = stream_of(driver, handle)
    graph, recording = stream.graph, recording_of(stream)
    waits_for = implicit_recording(driver, handle)
    if waits_for is not None:
        waits_for.is_valid = False
        raise DriverError(
            status.STREAM_CAPTURE_IMPLICIT, "the default stream would wait for a stream that records a graph"
        )
    if graph is None or recording is None:
        # Only consecutive launches of one stream may overlap.
        if kind != KERNEL or stream is not driver.working_stream:
            driver.device.synchronize()
        driver.working_stream = stream
        work()
        return
    if not recording.is_valid:
        raise DriverError(status.STREAM_CAPTURE_INVALIDATED)
    graph.append(Node(kind, work, name=name, details=details))
    recording.lengths[stream] = len(graph.nodes)
    if stream is not recording.origin:
        recording.unjoined.add(stream)


def also_in_stream(symbol: str, parameters: str, kind: int = COPY) -> Callable[[Work], Work]:
    """Also register the decorated function as `symbol`, whose last parameter is the stream in whose order it runs."""

    def register(call: Work) -> Work:
        def in_order(driver: Driver, *arguments: int) -> None:
            enqueue(driver, arguments[-1], lambda: call(driver, *arguments[:-1]), kind)

        driver_function(symbol, parameters)(in_order)
        return call

    return register


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
    recording = recording_of(stream_of(driver, handle))
    if recording is not None:
        recording.is_valid = False
        raise DriverError(status.STREAM_CAPTURE_UNSUPPORTED, "a stream that records a graph cannot be waited for")
    driver.device.synchronize()


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
    enqueue(driver, handle, lambda: host_function(function, "p")(data), HOST)


@driver_function("cuStreamAttachMemAsync", "pppu")
def attach_memory(driver: Driver, handle: int, address: int, size_bytes: int, flags: int) -> None:
    """Attach managed memory to a stream, which has no effect here."""
