"""Events. An event records the time of the host."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, write_pointer
from harness.device.driver.functions.streams import Stream, stream_of
from harness.device.driver.graph import Graph
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

_DISABLE_TIMING = 2


@dataclass(eq=False)
class Event:
    """An event."""

    flags: int
    seconds: float | None = None
    """When it was recorded last."""
    stream: Stream | None = None
    graph: Graph | None = None
    """The stream in which it was recorded last, and the graph that this stream recorded then."""
    nodes: int = 0
    """Number of nodes that the graph had."""


@driver_function("cuEventCreate", "pu")
def create(driver: Driver, event: int, flags: int) -> None:
    """Create an event."""
    driver.context()
    write_pointer(event, driver.new_handle(Event(flags)))


@driver_function("cuEventDestroy_v2", "p")
def destroy(driver: Driver, handle: int) -> None:
    """Destroy an event."""
    driver.remove_handle(handle, Event)


@driver_function("cuEventRecord", "pp")
@driver_function("cuEventRecordWithFlags", "ppu")
def record(driver: Driver, handle: int, stream: int, flags: int = 0) -> None:
    """Record an event in a stream."""
    event = driver.of_handle(handle, Event)
    event.stream = stream_of(driver, stream)
    event.graph = event.stream.graph
    if event.graph is None:
        driver.device.synchronize()
        event.seconds = time.perf_counter()
    else:
        event.nodes = len(event.graph.nodes)


@driver_function("cuStreamWaitEvent", "ppu")
def wait_event(driver: Driver, handle: int, event: int, flags: int) -> None:
    """Let a stream wait for an event, which has happened; or join the recording of the event's stream."""
    stream, found = stream_of(driver, handle), driver.of_handle(event, Event)
    recording = None if found.graph is None else found.graph.recording
    if recording is None or found.stream is None:
        driver.device.synchronize()
        return
    if stream.graph is None:
        stream.graph = found.graph
        recording.joined.append(stream)
        recording.unjoined.add(stream)
    if found.stream is not stream and recording.lengths.get(found.stream, 0) <= found.nodes:
        recording.unjoined.discard(found.stream)


@driver_function("cuEventSynchronize", "p")
@driver_function("cuEventQuery", "p")
def synchronize(driver: Driver, handle: int) -> None:
    """Wait for an event, or ask whether it has happened, which it has."""
    driver.context()
    driver.of_handle(handle, Event)
    driver.device.synchronize()


@driver_function("cuEventElapsedTime", "ppp")
@driver_function("cuEventElapsedTime_v2", "ppp", since=12080)
def elapsed(driver: Driver, milliseconds: int, start: int, end: int) -> None:
    """The time between two events. It is the emulation's, and says nothing about a GPU."""
    first, last = driver.of_handle(start, Event), driver.of_handle(end, Event)
    if first.seconds is None or last.seconds is None or (first.flags | last.flags) & _DISABLE_TIMING:
        raise DriverError(
            status.INVALID_HANDLE,
            "a time is between two recorded events, neither of them created without timing (CU_EVENT_DISABLE_TIMING)",
        )
    ctypes.c_float.from_address(milliseconds).value = 1e3 * (last.seconds - first.seconds)
