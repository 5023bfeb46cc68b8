"""Graphs: work that a stream records instead of executing it. A graph is executed in the order of its recording."""

from __future__ import annotations

from collections.abc import Iterable

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, host_function, write_int, write_pointer
from harness.device.driver.functions.streams import Graph, UserObject, enqueue, stream_of
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError

_CAPTURING = 1
_MOVE = 1
_FAULTY_NODE_AT, _RESULT_AT = 16, 24
"""Offsets in `CUDA_GRAPH_INSTANTIATE_PARAMS`."""
_DEFAULT_STREAMS = (0, 1, 2)


class ExecutableGraph(Graph):
    """An instantiated graph. Later changes to the graph do not affect it."""


@driver_function("cuStreamBeginCapture_v2", "pi", since=10010)
def begin_capture(driver: Driver, handle: int, mode: int) -> None:
    """Let a stream record what is issued to it."""
    stream = stream_of(driver, handle)
    if handle in _DEFAULT_STREAMS[:2]:
        raise DriverError(status.STREAM_CAPTURE_UNSUPPORTED, "the legacy default stream cannot record a graph")
    if stream.graph is not None:
        raise DriverError(status.INVALID_VALUE, "the stream records a graph already")
    stream.graph = Graph(origin=stream)
    driver.new_handle(stream.graph)


@driver_function("cuStreamEndCapture", "pp")
def end_capture(driver: Driver, handle: int, graph: int) -> None:
    """End the recording of a stream, and of all that have joined it."""
    stream = stream_of(driver, handle)
    recorded = stream.graph
    if recorded is None or recorded.origin is not stream:
        raise DriverError(status.INVALID_VALUE, "the stream does not record a graph, or has only joined one")
    for each in (stream, *recorded.joined):
        each.graph = None
    recorded.joined.clear()
    write_pointer(graph, driver.handle_of(recorded))


@driver_function("cuStreamIsCapturing", "pp")
def is_capturing(driver: Driver, handle: int, result: int) -> None:
    """Whether a stream records a graph."""
    write_int(result, _CAPTURING if stream_of(driver, handle).graph is not None else 0)


@driver_function("cuStreamGetCaptureInfo_v2", "pppppp", since=11030)
@driver_function("cuStreamGetCaptureInfo_v3", "ppppppp", since=12030)
def capture_info(driver: Driver, handle: int, result: int, identifier: int, graph: int, *dependencies: int) -> None:
    """Whether a stream records a graph, a number that identifies the recording, and the graph."""
    recorded = stream_of(driver, handle).graph
    write_int(result, 0 if recorded is None else _CAPTURING)
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
    given = driver.of_handle(graph, Graph)
    _add_references(given.objects, 1)
    write_pointer(copy, driver.new_handle(Graph(list(given.work), objects=list(given.objects))))


@driver_function("cuGraphGetNodes", "ppp")
def nodes(driver: Driver, graph: int, result: int, count: int) -> None:
    """The number of nodes, and numbers that identify them."""
    work = driver.of_handle(graph, Graph).work
    for index in range(len(work) if result else 0):
        write_pointer(result + 8 * index, graph + 1 + index)
    write_pointer(count, len(work))


@driver_function("cuGraphInstantiate", "ppp", since=12000)
@driver_function("cuGraphInstantiateWithFlags", "ppp", since=11040)
def instantiate(driver: Driver, executable: int, graph: int, flags: int) -> None:
    """Make a graph executable."""
    given = driver.of_handle(graph, Graph)
    _add_references(given.objects, 1)
    write_pointer(executable, driver.new_handle(ExecutableGraph(list(given.work), objects=list(given.objects))))


@driver_function("cuGraphInstantiateWithParams", "ppp", since=12000)
def instantiate_with_parameters(driver: Driver, executable: int, graph: int, parameters: int) -> None:
    """Make a graph executable. The parameters receive the node at fault, which is none, and the result."""
    instantiate(driver, executable, graph, 0)
    write_pointer(parameters + _FAULTY_NODE_AT, 0)
    write_int(parameters + _RESULT_AT, status.SUCCESS)


@driver_function("cuGraphExecUpdate_v2", "ppp", since=12000)
def update(driver: Driver, executable: int, graph: int, result: int) -> None:
    """Replace the work of an executable graph."""
    own, given = driver.of_handle(executable, ExecutableGraph), driver.of_handle(graph, Graph)
    _add_references(given.objects, 1)
    _add_references(own.objects, -1)
    own.work, own.objects = list(given.work), list(given.objects)


@driver_function("cuGraphUpload", "pp")
def upload(driver: Driver, executable: int, stream: int) -> None:
    """Prepare an executable graph, which needs nothing here."""
    driver.of_handle(executable, ExecutableGraph)


@driver_function("cuGraphLaunch", "pp")
def launch(driver: Driver, executable: int, stream: int) -> None:
    """Execute a graph in the order of a stream."""
    for work in driver.of_handle(executable, ExecutableGraph).work:
        enqueue(driver, stream, work)


@driver_function("cuGraphDestroy", "p")
def destroy(driver: Driver, graph: int) -> None:
    """Destroy a graph."""
    _add_references(driver.remove_handle(graph, Graph).objects, -1)


@driver_function("cuGraphExecDestroy", "p")
def destroy_executable(driver: Driver, executable: int) -> None:
    """Destroy an executable graph."""
    _add_references(driver.remove_handle(executable, ExecutableGraph).objects, -1)


def _add_references(objects: Iterable[UserObject], change: int) -> None:
    for each in objects:
        each.references += change
        if each.references == 0:
            each.release()


@driver_function("cuUserObjectCreate", "pppuu")
def create_object(driver: Driver, result: int, data: int, destroy: int, references: int, flags: int) -> None:
    """Register an object of the program, which `destroy(data)` destroys when nothing refers to it."""
    release = host_function(destroy, "p")
    write_pointer(result, driver.new_handle(UserObject(lambda: release(data), references)))


@driver_function("cuUserObjectRetain", "pu")
def retain_object(driver: Driver, handle: int, count: int) -> None:
    """Add references to an object."""
    _add_references([driver.of_handle(handle, UserObject)], count)


@driver_function("cuUserObjectRelease", "pu")
def release_object(driver: Driver, handle: int, count: int) -> None:
    """Remove references to an object."""
    _add_references([driver.of_handle(handle, UserObject)], -count)


@driver_function("cuGraphRetainUserObject", "ppuu")
def retain_for_graph(driver: Driver, graph: int, handle: int, count: int, flags: int) -> None:
    """Let a graph refer to an object. The program may give it references that it has itself."""
    found = driver.of_handle(handle, UserObject)
    driver.of_handle(graph, Graph).objects += [found] * count
    if not flags & _MOVE:
        _add_references([found], count)


@driver_function("cuGraphReleaseUserObject", "ppu")
def release_for_graph(driver: Driver, graph: int, handle: int, count: int) -> None:
    """Remove a graph's references to an object."""
    found = driver.of_handle(handle, UserObject)
    for _ in range(count):
        driver.of_handle(graph, Graph).objects.remove(found)
    _add_references([found], -count)
