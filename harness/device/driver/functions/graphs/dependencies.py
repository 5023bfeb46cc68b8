"""Which nodes a graph has, and on which others each depends."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from harness.device.driver import status
from harness.device.driver.function_table import driver_function, write_pointer
from harness.device.driver.graph import Graph, Node
from harness.device.driver.process import Driver
from harness.device.driver.status import DriverError


def nodes_at(driver: Driver, address: int, count: int) -> list[Node]:
    """The nodes whose handles are at an address of the caller."""
    handles = (ctypes.c_uint64 * count).from_address(address) if count else ()
    return [driver.of_handle(handle, Node) for handle in handles]


def handle_of_node(driver: Driver, node: Node) -> int:
    """The handle of a node, which gets one when the program asks for it."""
    node.handle = node.handle or driver.new_handle(node)
    return node.handle


def _write_nodes(driver: Driver, nodes: Iterable[Node], result: int, count: int) -> None:
    """Store as many handles as there is room for, and the number of nodes. Without `result`, only the number."""
    found = list(nodes)
    room = ctypes.c_uint64.from_address(count).value
    for index in range(room if result else 0):
        write_pointer(result + 8 * index, handle_of_node(driver, found[index]) if index < len(found) else 0)
    write_pointer(count, min(room, len(found)) if result else len(found))


@driver_function("cuGraphAddDependencies", "pppp")
def add_dependencies(driver: Driver, graph: int, sources: int, targets: int, count: int) -> None:
    """Let nodes depend on others."""
    for source, target in zip(nodes_at(driver, sources, count), nodes_at(driver, targets, count)):
        if source in target.dependencies or source is target:
            raise DriverError(status.INVALID_VALUE, "the dependency exists, or is of a node on itself")
        target.dependencies.append(source)


@driver_function("cuGraphAddDependencies_v2", "ppppp", since=12030)
def add_annotated_dependencies(
    driver: Driver, graph: int, sources: int, targets: int, annotations: int, count: int
) -> None:
    """Let nodes depend on others. Annotations have no effect on a serial device."""
    add_dependencies(driver, graph, sources, targets, count)


@driver_function("cuGraphRemoveDependencies", "pppp")
def remove_dependencies(driver: Driver, graph: int, sources: int, targets: int, count: int) -> None:
    """Remove dependencies of nodes."""
    for source, target in zip(nodes_at(driver, sources, count), nodes_at(driver, targets, count)):
        if source not in target.dependencies:
            raise DriverError(status.INVALID_VALUE, "there is no such dependency")
        target.dependencies.remove(source)


@driver_function("cuGraphRemoveDependencies_v2", "ppppp", since=12030)
def remove_annotated_dependencies(
    driver: Driver, graph: int, sources: int, targets: int, annotations: int, count: int
) -> None:
    """Remove dependencies of nodes."""
    remove_dependencies(driver, graph, sources, targets, count)


@driver_function("cuGraphGetNodes", "ppp")
def nodes_of(driver: Driver, graph: int, result: int, count: int) -> None:
    """The nodes of a graph."""
    _write_nodes(driver, driver.of_handle(graph, Graph).nodes, result, count)


@driver_function("cuGraphGetRootNodes", "ppp")
def roots_of(driver: Driver, graph: int, result: int, count: int) -> None:
    """The nodes of a graph that depend on none."""
    nodes = driver.of_handle(graph, Graph).nodes
    _write_nodes(driver, (node for node in nodes if not node.dependencies), result, count)


@driver_function("cuGraphGetEdges", "pppp")
def edges_of(driver: Driver, graph: int, sources: int, targets: int, count: int) -> None:
    """The dependencies of a graph."""
    room = ctypes.c_uint64.from_address(count).value
    edges = [(source, node) for node in driver.of_handle(graph, Graph).nodes for source in node.dependencies]
    _write_nodes(driver, (source for source, _ in edges), sources, count)
    write_pointer(count, room)
    _write_nodes(driver, (target for _, target in edges), targets, count)


@driver_function("cuGraphGetEdges_v2", "ppppp", since=12030)
def annotated_edges_of(driver: Driver, graph: int, sources: int, targets: int, annotations: int, count: int) -> None:
    """The dependencies of a graph, without annotations."""
    edges_of(driver, graph, sources, targets, count)
    if annotations and sources:
        ctypes.memset(annotations, 0, 8 * ctypes.c_uint64.from_address(count).value)


@driver_function("cuGraphNodeGetDependencies", "ppp")
def dependencies_of(driver: Driver, node: int, result: int, count: int) -> None:
    """The nodes on which a node depends."""
    _write_nodes(driver, driver.of_handle(node, Node).dependencies, result, count)


@driver_function("cuGraphNodeGetDependentNodes", "ppp")
def dependents_of(driver: Driver, handle: int, result: int, count: int) -> None:
    """The nodes that depend on a node."""
    node = driver.of_handle(handle, Node)
    graph = driver.find(Graph, lambda each: node in each.nodes)
    _write_nodes(driver, (each for each in graph.nodes if node in each.dependencies), result, count)


@driver_function("cuGraphDestroyNode", "p")
def destroy_node(driver: Driver, handle: int) -> None:
    """Remove a node from its graph."""
    node = driver.of_handle(handle, Node)
    graph = driver.find(Graph, lambda each: node in each.nodes)
    graph.nodes.remove(node)
    for other in graph.nodes:
        other.dependencies = [each for each in other.dependencies if each is not node]
    driver.remove_handle(handle, Node)
