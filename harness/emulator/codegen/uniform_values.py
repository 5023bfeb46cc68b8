"""An IR builder that computes a value once if it is the same in all lanes, and then broadcasts it.

LLVM removes the vectors that nothing reads.
"""

from __future__ import annotations

import re

from harness.emulator.codegen.vector_ir_builder import VectorIRBuilder, vector

_SPLAT = re.compile(r"splat \(i\d+ (\w+|-\d+)\)")


class UniformValues(VectorIRBuilder):
    """`VectorIRBuilder` that knows the scalars of which vectors of integers are broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self._scalars: dict[str, str] = {}
        """The scalar by vector."""
        self._first_lanes: dict[str, str] = {}
        """The lowest lane of a mask."""

    def forget_scalars(self) -> None:
        """Called at the beginning of a block, where values of others are not available."""
        self._scalars.clear()
        self._first_lanes.clear()

    def scalar_of(self, value: str) -> str | None:
        """The integer that all lanes of a vector contain; None if it is not known."""
        literal = _SPLAT.fullmatch(value)
        return literal[1] if literal else self._scalars.get(value)

    def _scalars_of(self, *values: str) -> list[str]:
        """The scalars of vectors; empty unless all are known."""
        found = [scalar for value in values if (scalar := self.scalar_of(value)) is not None]
        return found if len(found) == len(values) else []

    def spread(self, element: str, scalar: str) -> str:
        """Broadcast a scalar to all lanes."""
        value = super().spread(element, scalar)
        if element.startswith("i"):
            self._scalars[value] = scalar
        return value

    def spread_first(self, element: str, row: str, mask: str) -> str:
        """Broadcast the element of the lowest lane in the i32 `mask` from a row of 32 in memory."""
        if mask not in self._first_lanes:
            self._first_lanes[mask] = self.first_lane(mask)
        place = self.op(f"getelementptr {element}, ptr {row}, i32 {self._first_lanes[mask]}")
        return self.spread(element, self.op(f"load {element}, ptr {place}"))

    def binary(self, operation: str, element: str, a: str, b: str) -> str:
        """Apply `operation` lane by lane."""
        scalars = self._scalars_of(a, b)
        if not scalars:
            return super().binary(operation, element, a, b)
        return self.spread(element, self.op(f"{operation} {element} {', '.join(scalars)}"))

    def compare(self, predicate: str, element: str, a: str, b: str) -> str:
        """`icmp` or `fcmp`, by the element type."""
        scalars = self._scalars_of(a, b)
        if not scalars:
            return super().compare(predicate, element, a, b)
        return self.spread("i1", self.op(f"icmp {predicate} {element} {', '.join(scalars)}"))

    def select(self, element: str, condition: str, yes: str, no: str) -> str:
        """`yes` or `no`, lane by lane."""
        which = self.scalar_of(condition)
        if which is None:
            return super().select(element, condition, yes, no)
        scalars = self._scalars_of(yes, no)
        if scalars:
            return self.spread(element, self.op(f"select i1 {which}, {element} {scalars[0]}, {element} {scalars[1]}"))
        return self.op(f"select i1 {which}, {vector(element)} {yes}, {vector(element)} {no}")

    def cast(self, operation: str, source: str, value: str, target: str) -> str:
        """`trunc`, `zext`, `bitcast`, `sitofp`, ...; the value itself if both types are the same."""
        scalar = self.scalar_of(value)
        if source == target or scalar is None or operation not in ("trunc", "zext", "sext"):
            return super().cast(operation, source, value, target)
        return self.spread(target, self.op(f"{operation} {source} {scalar} to {target}"))
