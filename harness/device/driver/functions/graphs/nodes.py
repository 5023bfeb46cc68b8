"""Nodes of graphs, and their parameters, which are copied when they are given."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, host_function, write_int, write_pointer
from harness.device.driver.functions.graphs.dependencies import handle_of_node, nodes_at
from harness.device.driver.functions.launches import Extents, launch_node
from harness.device.driver.functions.memory import fill_box
from harness.device.driver.functions.strided_copies import prepared_copy
from harness.device.driver.graph import CHILD, COPY, EMPTY, FILL, HOST, KERNEL, ExecutableGraph, Graph, Node
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError


class _Launch(ctypes.Structure):
    """`CUDA_KERNEL_NODE_PARAMS`."""

    _fields_ = [
        ("function", ctypes.c_uint64), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32), ("parameters", ctypes.c_uint64), ("extra", ctypes.c_uint64),
        ("kernel", ctypes.c_uint64), ("context", ctypes.c_uint64),
    ]  # fmt: skip


class _Fill(ctypes.Structure):
    """`CUDA_MEMSET_NODE_PARAMS`."""

    _fields_ = [
        ("address", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint32),
        ("element_bytes", ctypes.c_uint32), ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _Call(ctypes.Structure):
    """`CUDA_HOST_NODE_PARAMS`."""

    _fields_ = [("function", ctypes.c_uint64), ("data", ctypes.c_uint64)]


def _launch(driver: Driver, address: int) -> Node:
    given = _Launch.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Launch)))
    extents = Extents(tuple(given.grid), tuple(given.block), given.shared_bytes)
    return launch_node(driver, given.function or given.kernel, extents, given.parameters, given.extra)


def _copy(driver: Driver, address: int) -> Node:
    return Node(COPY, prepared_copy(driver, address))


def _fill(driver: Driver, address: int) -> Node:
    given = _Fill.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(_Fill)))
    pitch = given.pitch if given.height > 1 else 0
    extents = (given.element_bytes, given.width, given.height)
    return Node(FILL, lambda: fill_box(driver, given.address, pitch, given.value, *extents))


def _call(driver: Driver, address: int) -> Node:
    given = _Call.from_address(address)
    function, data = host_function(given.function, "p"), given.data
    return Node(HOST, lambda: function(data))


_PREPARE: dict[int, Callable[[Driver, int], Node]] = {KERNEL: _launch, COPY: _copy, FILL: _fill, HOST: _call}
"""Reads the parameters of a node, by its kind."""


def _add(driver: Driver, result: int, graph: int, dependencies: int, count: int, node: Node) -> None:
    found = driver.of_handle(graph, Graph)
    node.dependencies = nodes_at(driver, dependencies, count)
    if any(each not in found.nodes for each in node.dependencies):
        raise DriverError(status.INVALID_VALUE, "a node can only depend on nodes of the same graph")
    found.nodes.append(node)
    write_pointer(result, handle_of_node(driver, node))


def _add_prepared(
    driver: Driver, result: int, graph: int, dependencies: int, count: int, kind: int, parameters: int
) -> None:
    driver.context()
    _add(driver, result, graph, dependencies, count, _PREPARE[kind](driver, parameters))


@driver_function("cuGraphAddKernelNode_v2", "ppppp", since=12000)
def add_kernel(driver: Driver, result: int, graph: int, dependencies: int, count: int, parameters: int) -> None:
    """Add the launch of a kernel."""
    _add_prepared(driver, result, graph, dependencies, count, KERNEL, parameters)


@driver_function("cuGraphAddMemcpyNode", "pppppp")
def add_copy(
    driver: Driver, result: int, graph: int, dependencies: int, count: int, parameters: int, context: int
) -> None:
    """Add the copy of a box."""
    _add_prepared(driver, result, graph, dependencies, count, COPY, parameters)


@driver_function("cuGraphAddMemsetNode", "pppppp")
def add_fill(
    driver: Driver, result: int, graph: int, dependencies: int, count: int, parameters: int, context: int
) -> None:
    """Add the filling of memory."""
    _add_prepared(driver, result, graph, dependencies, count, FILL, parameters)


@driver_function("cuGraphAddHostNode", "ppppp")
def add_call(driver: Driver, result: int, graph: int, dependencies: int, count: int, parameters: int) -> None:
    """Add the call of a function of the host."""
    _add_prepared(driver, result, graph, dependencies, count, HOST, parameters)


@driver_function("cuGraphAddEmptyNode", "pppp")
def add_empty(driver: Driver, result: int, graph: int, dependencies: int, count: int) -> None:
    """Add a node without work."""
    _add(driver, result, graph, dependencies, count, Node(EMPTY))


@driver_function("cuGraphAddChildGraphNode", "ppppp")
def add_child(driver: Driver, result: int, graph: int, dependencies: int, count: int, child: int) -> None:
    """Add a copy of another graph."""
    copy = Graph()
    driver.of_handle(child, Graph).copied_to(copy)
    _add(driver, result, graph, dependencies, count, Node(CHILD, child=copy))
    driver.of_handle(graph, Graph).objects += copy.objects


@driver_function("cuGraphChildGraphNodeGetGraph", "pp")
def child_of(driver: Driver, node: int, graph: int) -> None:
    """The graph in a node."""
    found = driver.of_handle(node, Node).child
    if found is None:
        raise DriverError(status.INVALID_VALUE)
    write_pointer(graph, driver.new_handle(found))


@driver_function("cuGraphNodeGetType", "pp")
def kind_of(driver: Driver, node: int, kind: int) -> None:
    """The kind of a node."""
    write_int(kind, driver.of_handle(node, Node).kind)


@driver_function("cuGraphNodeFindInClone", "ppp")
def find_in_clone(driver: Driver, result: int, original: int, clone: int) -> None:
    """The copy of a node in a copy of its graph."""
    write_pointer(result, handle_of_node(driver, _copy_of(driver, driver.of_handle(clone, Graph), original)))


def _copy_of(driver: Driver, graph: Graph, original: int) -> Node:
    found = graph.copies.get(driver.of_handle(original, Node))
    if found is None:
        raise DriverError(status.INVALID_VALUE, "the graph was not made of the node's graph")
    return found


def _set(driver: Driver, node: Node, kind: int, parameters: int) -> None:
    if node.kind != kind:
        raise DriverError(status.INVALID_VALUE, "the node is of another kind")
    given = _PREPARE[kind](driver, parameters)
    node.work, node.name, node.details = given.work, given.name, given.details


def _register(symbol: str, kind: int, since: int, with_context: bool) -> None:
    """Register the functions that change the parameters of a kind of node, in a graph and in an executable one."""
    name, _, version = symbol.partition("_")
    suffix = f"_{version}" if version else ""

    @driver_function(f"cuGraph{name}NodeSetParams{suffix}", "pp", since=since)
    def change(driver: Driver, node: int, parameters: int) -> None:
        """Change the parameters of a node."""
        _set(driver, driver.of_handle(node, Node), kind, parameters)

    @driver_function(f"cuGraphExec{name}NodeSetParams{suffix}", "pppp" if with_context else "ppp", since=since)
    def change_executable(driver: Driver, graph: int, node: int, parameters: int, context: int = 0) -> None:
        """Change the parameters of a node in an executable graph."""
        _set(driver, _copy_of(driver, driver.of_handle(graph, ExecutableGraph), node), kind, parameters)


_register("Kernel_v2", KERNEL, 12000, with_context=False)
_register("Memcpy", COPY, 0, with_context=True)
_register("Memset", FILL, 0, with_context=True)
_register("Host", HOST, 0, with_context=False)
