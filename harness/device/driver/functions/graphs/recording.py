"""Graphs as a whole: recorded by streams, copied, instantiated and launched."""

from __future__ import annotations

from pathlib import Path

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, read_text, write_int, write_pointer
from harness.device.driver.functions.streams import enqueue, implicit_recording, recording_of, stream_of
from harness.device.driver.graph import KIND_NAMES, ExecutableGraph, Graph, Recording, add_references
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

_NONE, _ACTIVE, _INVALIDATED = range(3)
"""Whether a stream records (`CUstreamCaptureStatus`)."""
_VERBOSE = 1
_FAULTY_NODE_AT, _RESULT_AT = 16, 24
"""Offsets in `CUDA_GRAPH_INSTANTIATE_PARAMS`."""
_DEFAULT_STREAMS = (0, 1, 2)


@driver_function("cuStreamBeginCapture_v2", "pi", since=10010)
def begin_capture(driver: Driver, handle: int, mode: int) -> None:
    """Let a stream record what is issued to it."""
    stream = stream_of(driver, handle)
    if handle in _DEFAULT_STREAMS[:2]:
        raise DriverError(status.STREAM_CAPTURE_UNSUPPORTED, "the legacy default stream cannot record a graph")
    if stream.graph is not None:
        raise DriverError(status.INVALID_VALUE, "the stream records a graph already")
    stream.graph = Graph(recording=Recording(stream))
    driver.recordings.append(stream.graph.recording)
    driver.new_handle(stream.graph)


@driver_function("cuStreamEndCapture", "pp")
def end_capture(driver: Driver, handle: int, graph: int) -> None:
    """End the recording of a stream, and of all that have joined it."""
    stream = stream_of(driver, handle)
    recorded, recording = stream.graph, recording_of(stream)
    write_pointer(graph, 0)
    if recorded is None or recording is None:
        raise DriverError(status.ILLEGAL_STATE, "the stream does not record a graph")
    if recording.origin is not stream:
        recording.is_valid = False
        raise DriverError(status.STREAM_CAPTURE_UNMATCHED, "the stream has only joined the recording of another")
    for each in (stream, *recording.joined):
        each.graph = None
    recorded.recording = None
    driver.recordings.remove(recording)
    if not recording.is_valid:
        raise DriverError(status.STREAM_CAPTURE_INVALIDATED)
    if recording.unjoined:
        raise DriverError(
            status.STREAM_CAPTURE_UNJOINED, "a stream has joined the recording, and no other waits for its work"
        )
    write_pointer(graph, driver.handle_of(recorded))


def _state(driver: Driver, handle: int) -> int:
    recording = recording_of(stream_of(driver, handle))
    return _NONE if recording is None else _ACTIVE if recording.is_valid else _INVALIDATED


@driver_function("cuStreamIsCapturing", "pp")
def is_capturing(driver: Driver, handle: int, result: int) -> None:
    """Whether a stream records a graph."""
    if implicit_recording(driver, handle) is not None:
        raise DriverError(status.STREAM_CAPTURE_IMPLICIT)
    write_int(result, _state(driver, handle))


@driver_function("cuStreamGetCaptureInfo_v2", "pppppp", since=11030)
@driver_function("cuStreamGetCaptureInfo_v3", "ppppppp", since=12030)
def capture_info(driver: Driver, handle: int, result: int, identifier: int, graph: int, *dependencies: int) -> None:
    """Whether a stream records a graph, a number that identifies the recording, and the graph."""
    recorded = stream_of(driver, handle).graph
    write_int(result, _state(driver, handle))
    if recorded is not None:
        write_pointer(identifier, driver.handle_of(recorded))
        write_pointer(graph, driver.handle_of(recorded))
        for place in dependencies:
            write_pointer(place, 0)


@driver_function("cuThreadExchangeStreamCaptureMode", "p")
def exchange_capture_mode(driver: Driver, mode: int) -> None:
    """Set the mode of recording, which has no effect here."""


@driver_function("cuGraphCreate", "pu")
def create(driver: Driver, graph: int, flags: int) -> None:
    """Create an empty graph."""
    driver.context()
    write_pointer(graph, driver.new_handle(Graph()))


@driver_function("cuGraphClone", "pp")
def clone(driver: Driver, copy: int, graph: int) -> None:
    """Copy a graph."""
    made = Graph()
    driver.of_handle(graph, Graph).copied_to(made)
    write_pointer(copy, driver.new_handle(made))


@driver_function("cuGraphInstantiate", "ppp", since=12000)
@driver_function("cuGraphInstantiateWithFlags", "ppp", since=11040)
def instantiate(driver: Driver, executable: int, graph: int, flags: int) -> None:
    """Make a graph executable."""
    made, given = ExecutableGraph(), driver.of_handle(graph, Graph)
    if given.in_order() is None:
        raise DriverError(status.INVALID_VALUE, "nodes of the graph depend on each other in a circle")
    given.copied_to(made)
    write_pointer(executable, driver.new_handle(made))


@driver_function("cuGraphInstantiateWithParams", "ppp", since=12000)
def instantiate_with_parameters(driver: Driver, executable: int, graph: int, parameters: int) -> None:
    """Make a graph executable. The parameters receive the node at fault, which is none, and the result."""
    instantiate(driver, executable, graph, 0)
    write_pointer(parameters + _FAULTY_NODE_AT, 0)
    write_int(parameters + _RESULT_AT, status.SUCCESS)


@driver_function("cuGraphExecUpdate_v2", "ppp", since=12000)
def update(driver: Driver, executable: int, graph: int, result: int) -> None:
    """Replace the work of an executable graph."""
    driver.of_handle(graph, Graph).copied_to(driver.of_handle(executable, ExecutableGraph))


@driver_function("cuGraphUpload", "pp")
def upload(driver: Driver, executable: int, stream: int) -> None:
    """Prepare an executable graph, which needs nothing here."""
    driver.of_handle(executable, ExecutableGraph)


@driver_function("cuGraphLaunch", "pp")
def launch(driver: Driver, executable: int, stream: int) -> None:
    """Execute a graph in the order of a stream."""
    driver.of_handle(executable, ExecutableGraph).run(
        lambda node: enqueue(driver, stream, node.work, node.kind, node.name, node.details)
    )


@driver_function("cuGraphDestroy", "p")
def destroy(driver: Driver, graph: int) -> None:
    """Destroy a graph."""
    add_references(driver.remove_handle(graph, Graph).objects, -1)


@driver_function("cuGraphExecDestroy", "p")
def destroy_executable(driver: Driver, executable: int) -> None:
    """Destroy an executable graph."""
    add_references(driver.remove_handle(executable, ExecutableGraph).objects, -1)


@driver_function("cuGraphDebugDotPrint", "ppu", since=11030)
def print_dot(driver: Driver, graph: int, path: int, flags: int) -> None:
    """Write a graph in the language of Graphviz."""
    nodes = driver.of_handle(graph, Graph).nodes
    numbers = {node: number for number, node in enumerate(nodes)}
    lines = []
    for node, number in numbers.items():
        words = [KIND_NAMES[node.kind], node.name, node.details if flags & _VERBOSE else ""]
        lines.append(f'    n{number} [label="{" ".join(filter(None, words))}"];')
    lines += [f"    n{numbers[each]} -> n{number};" for node, number in numbers.items() for each in node.dependencies]
    Path(read_text(path)).write_text("\n".join(("digraph {", *lines, "}", "")))
