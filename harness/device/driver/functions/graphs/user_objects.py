"""Objects of the program that graphs refer to."""

from __future__ import annotations

from harness.device.driver.function_table import driver_function, host_function, write_pointer
from harness.device.driver.graph import Graph, UserObject, add_references
from harness.device.driver.process import Driver

_MOVE = 1


@driver_function("cuUserObjectCreate", "pppuu")
def create_object(driver: Driver, result: int, data: int, destroy: int, references: int, flags: int) -> None:
    """Register an object of the program, which `destroy(data)` destroys when nothing refers to it."""
    release = host_function(destroy, "p")
    write_pointer(result, driver.new_handle(UserObject(lambda: release(data), references)))


@driver_function("cuUserObjectRetain", "pu")
def retain_object(driver: Driver, handle: int, count: int) -> None:
    """Add references to an object."""
    add_references([driver.of_handle(handle, UserObject)], count)


@driver_function("cuUserObjectRelease", "pu")
def release_object(driver: Driver, handle: int, count: int) -> None:
    """Remove references to an object."""
    add_references([driver.of_handle(handle, UserObject)], -count)


@driver_function("cuGraphRetainUserObject", "ppuu")
def retain_for_graph(driver: Driver, graph: int, handle: int, count: int, flags: int) -> None:
    """Let a graph refer to an object. The program may give it references that it has itself."""
    found = driver.of_handle(handle, UserObject)
    driver.of_handle(graph, Graph).objects += [found] * count
    if not flags & _MOVE:
        add_references([found], count)


@driver_function("cuGraphReleaseUserObject", "ppu")
def release_for_graph(driver: Driver, graph: int, handle: int, count: int) -> None:
    """Remove a graph's references to an object."""
    found = driver.of_handle(handle, UserObject)
    for _ in range(count):
        driver.of_handle(graph, Graph).objects.remove(found)
    add_references([found], -count)
