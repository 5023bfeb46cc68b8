"""Graphs: nodes of work with dependencies. On the serial device they run one after the other."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

KERNEL, COPY, FILL, HOST, CHILD, EMPTY = range(6)
"""Kinds of nodes, numbered as in CUDA (`CUgraphNodeType`)."""
KIND_NAMES = ("kernel", "memcpy", "memset", "host", "graph", "empty")


def do_nothing() -> None:
    """The work of a node that has none."""


@dataclass(eq=False)
class Node:
    """A node of a graph."""

    kind: int
    work: Callable[[], None] = do_nothing
    dependencies: list[Node] = field(default_factory=list)
    child: Graph | None = None
    """The graph that it runs."""
    name: str = ""
    """Of the kernel, if it launches one."""
    details: str = ""
    """Grid and block of the launch."""
    handle: int = 0
    """Its handle, if the program has it."""


@dataclass(eq=False)
class Recording:
    """How streams record a graph."""

    origin: Any
    """The stream in which it began."""
    joined: list[Any] = field(default_factory=list)
    """Streams that record since they waited for an event of a recording stream."""
    unjoined: set[Any] = field(default_factory=set)
    """Those with work for which no other recording stream has waited."""
    lengths: dict[Any, int] = field(default_factory=dict)
    """Number of nodes of the graph after the last work of each stream."""
    is_valid: bool = True
    """Whether no call was made that cannot be recorded."""


@dataclass(eq=False)
class UserObject:
    """An object of the program, which is told when nothing refers to it."""

    release: Callable[[], None]
    references: int


def add_references(objects: Iterable[UserObject], change: int) -> None:
    """Add or remove references. An object is released with the last."""
    for each in objects:
        each.references += change
        if each.references == 0:
            each.release()


@dataclass(eq=False)
class Graph:
    """Nodes that depend on each other."""

    nodes: list[Node] = field(default_factory=list)
    """In the order of their creation."""
    objects: list[UserObject] = field(default_factory=list)
    """Objects of the program that it refers to, once for each reference."""
    recording: Recording | None = None
    """Which streams record it."""
    copies: Mapping[Node, Node] = field(default_factory=dict)
    """Of a copy: its node by that of the original."""

    def append(self, node: Node) -> None:
        """Append a node, which depends on the one before."""
        node.dependencies = self.nodes[-1:]
        self.nodes.append(node)

    def in_order(self) -> list[Node] | None:
        """The nodes, each after those on which it depends, and else in the order of their creation.

        None if they depend on each other in a circle.
        """
        numbers = {node: number for number, node in enumerate(self.nodes)}
        left = {node: len(node.dependencies) for node in self.nodes}
        dependents: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for each in node.dependencies:
                dependents[each].append(node)
        ready = [number for node, number in numbers.items() if not left[node]]  # in order, and so a heap
        placed = []
        while ready:
            node = self.nodes[heapq.heappop(ready)]
            placed.append(node)
            for each in dependents[node]:
                left[each] -= 1
                if not left[each]:
                    heapq.heappush(ready, numbers[each])
        return placed if len(placed) == len(self.nodes) else None

    def copied_to(self, copy: Graph) -> None:
        """Make another graph a copy of this one. It refers to the same objects of the program."""
        copies: dict[Node, Node] = {}
        for node in self.nodes:
            copies[node] = replace(node, dependencies=[], handle=0)
            if node.child is not None:
                child = Graph()
                node.child.copied_to(child)
                copies[node].child = child
        for node, other in copies.items():
            other.dependencies = [copies[each] for each in node.dependencies]
        add_references(self.objects, 1)
        add_references(copy.objects, -1)
        copy.nodes, copy.objects, copy.copies = list(copies.values()), list(self.objects), copies

    def run(self, execute: Callable[[Node], None]) -> None:
        """Pass each node to a function, in order."""
        for node in self.in_order() or ():
            if node.child is not None:
                node.child.run(execute)
            else:
                execute(node)


class ExecutableGraph(Graph):
    """An instantiated graph. Later changes to the graph do not affect it."""
