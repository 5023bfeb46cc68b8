"""A builder of LLVM IR text over vectors of 32 lanes.

A value is the name of a vector of 32 elements; the caller knows its element type (`i1`, `i16`, `i32`, `i64`, `i128`,
`float`, `double`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

INTEGER = {1: "i1", 8: "i8", 16: "i16", 32: "i32", 64: "i64", 128: "i128"}
FLOAT = {32: "float", 64: "double"}
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "i128": 128, "float": 32, "double": 64}


def vector(element: str) -> str:
    """The LLVM type of 32 lanes."""
    return f"<32 x {element}>"


def splat(element: str, value: int) -> str:
    """An integer constant in all 32 lanes."""
    bits = BITS[element]
    value &= (1 << bits) - 1
    return f"splat ({element} {value})" if bits > 1 else f"splat (i1 {'true' if value else 'false'})"


def splat_float(element: str, value: float) -> str:
    """A floating-point constant in all 32 lanes."""
    if element == "float":
        return float_from_bits("float", struct.unpack("<I", struct.pack("<f", value))[0])
    return float_from_bits("double", struct.unpack("<Q", struct.pack("<d", value))[0])


def float_from_bits(element: str, bits: int) -> str:
    """The float with these bits in all 32 lanes."""
    integer = INTEGER[BITS[element]]
    return f"bitcast ({vector(integer)} {splat(integer, bits)} to {vector(element)})"


class VectorIRBuilder:
    """Collects the lines of one LLVM function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self._count = 0

    # Text -----------------------------------------------------------------------------------------------------------

    def op(self, expression: str) -> str:
        """Emit `%x = expression` and return the name of the result."""
        self._count += 1
        name = f"%v{self._count}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def do(self, statement: str) -> None:
        """Emit a statement without a result."""
        self.lines.append(f"  {statement}")

    def label(self, name: str) -> None:
        """Start an LLVM block."""
        self.lines.append(f"{name}:")

    def fresh_label(self, word: str) -> str:
        """A unique label."""
        self._count += 1
        return f"{word}{self._count}"

    def intrinsic(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call an LLVM intrinsic; arguments are (type, value)."""
        types = ", ".join(t for t, _ in arguments)
        self.declarations.add(f"declare {result} @{name}({types})")
        return self.op(f"call {result} @{name}({', '.join(f'{t} {v}' for t, v in arguments)})")

    def fma(self, element: str, a: str, b: str, c: str) -> str:
        """Return a * b + c of floats or doubles, rounded once, lane by lane."""
        kind = vector(element)
        return self.intrinsic(f"llvm.fma.v32f{BITS[element]}", kind, (kind, a), (kind, b), (kind, c))

    # Scalars and vectors --------------------------------------------------------------------------------------------

    def spread(self, element: str, scalar: str) -> str:
        """Broadcast a scalar to all lanes."""
        first = self.op(f"insertelement {vector(element)} poison, {element} {scalar}, i32 0")
        return self.op(f"shufflevector {vector(element)} {first}, {vector(element)} poison, <32 x i32> zeroinitializer")

    def select(self, element: str, condition: str, yes: str, no: str) -> str:
        """`yes` or `no`, lane by lane."""
        kind = vector(element)
        return self.op(f"select {vector('i1')} {condition}, {kind} {yes}, {kind} {no}")

    def binary(self, operation: str, element: str, a: str, b: str) -> str:
        """Apply `operation` lane by lane."""
        return self.op(f"{operation} {vector(element)} {a}, {b}")

    def compare(self, predicate: str, element: str, a: str, b: str) -> str:
        """`icmp` or `fcmp`, by the element type."""
        word = "fcmp" if element in ("float", "double") else "icmp"
        return self.op(f"{word} {predicate} {vector(element)} {a}, {b}")

    def cast(self, operation: str, source: str, value: str, target: str) -> str:
        """`trunc`, `zext`, `bitcast`, `sitofp`, ...; the value itself if both types are the same."""
        if source == target:
            return value
        return self.op(f"{operation} {vector(source)} {value} to {vector(target)}")

    def bits_of(self, lanes: str) -> str:
        """Convert 32 predicates to an i32 mask."""
        return self.op(f"bitcast <32 x i1> {lanes} to i32")

    def lanes_of(self, bits: str) -> str:
        """Convert an i32 mask to 32 predicates."""
        return self.op(f"bitcast i32 {bits} to <32 x i1>")

    def first_lane(self, bits: str) -> str:
        """Index of the lowest set lane in the scalar i32 `bits`; undefined if there is none."""
        self.declarations.add("declare i32 @llvm.cttz.i32(i32, i1)")
        first = self.op(f"call i32 @llvm.cttz.i32(i32 {bits}, i1 false)")
        return self.op(f"and i32 {first}, 31")

    def widen(self, scalar: str) -> str:
        """Zero-extend i32 to i64."""
        return self.op(f"zext i32 {scalar} to i64")


def module_ir(functions: Iterable[tuple[Sequence[str], set[str]]]) -> str:
    """The LLVM IR of functions, each given as its lines and the declarations that it needs."""
    lines: list[str] = []
    declarations: set[str] = set()
    for own, needed in functions:
        lines += own
        declarations |= needed
    return "\n".join([*sorted(declarations), *lines, ""])


@dataclass(frozen=True)
class Prelude:
    """One function: LLVM types of its arguments and result, and the function that emits its body."""

    arguments: tuple[str, ...]
    result: str
    build: Callable[..., str]
    attributes: str = "noinline"

    def text(self, name: str) -> tuple[list[str], set[str]]:
        """Its definition, and the declarations that it needs."""
        v = VectorIRBuilder()
        names = [f"%a{i}" for i in range(len(self.arguments))]
        result = self.build(v, *names)
        parameters = ", ".join(f"{t} {n}" for t, n in zip(self.arguments, names))
        head = f"define internal {self.result} @{name}({parameters}) {self.attributes} {{"
        return [head, *v.lines, f"  ret {self.result} {result}", "}"], v.declarations
