"""Declarations of variables and parameters: their space, type, alignment, extents and initial values."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from harness.emulator.ptx.instructions import Link, Variable
from harness.emulator.ptx.token_stream import TokenStream
from harness.emulator.ptx.types import TYPES, PtxType
from harness.support.errors import CompileError

LINKAGE = {".extern", ".visible", ".weak", ".common"}
SPACES = {".global", ".const", ".shared", ".local", ".param"}
_FLOAT_FORMATS = {32: "<f", 64: "<d"}


class Declarations(TokenStream):
    """The part of the parser that reads declarations."""

    def variables(self) -> list[Variable]:
        """One declaration, of one or more variables."""
        extern = False
        while self.peek().text in LINKAGE:
            extern |= self.next().text == ".extern"
        space = self.next().text
        if space not in SPACES:
            raise CompileError(f"PTX line {self.peek().line}: unknown state space '{space}'")
        align, element, lanes = self.declared_type()
        variables = []
        while True:
            name = self.next().text
            count, sized = lanes, True
            while self.accept("["):
                if self.accept("]"):
                    sized = False
                    continue
                count *= self.integer()
                self.expect("]")
            initial: bytes | None = None
            links: tuple[Link, ...] = ()
            if self.accept("="):
                values = self._initializer(element)
                count = count if sized else len(values)
                sized = True
                initial, links = _packed(element, values, count)
            variables.append(
                Variable(
                    name,
                    space[1:],
                    align or lanes * element.size_bytes,
                    count * element.size_bytes if sized else 0,
                    initial,
                    extern,
                    element,
                    links,
                )
            )
            if not self.accept(","):
                break
        self.expect(";")
        return variables

    def declared_type(self) -> tuple[int, PtxType, int]:
        """`[.align n] [.ptr ...] [.v2|.v4] .type` -> alignment (0 where not given), type, elements per vector."""
        align, lanes = 0, 1
        while True:
            token = self.next()
            if token.text == ".align":
                align = self.integer()
            elif token.text in (".v2", ".v4", ".v8"):
                lanes = int(token.text[2:])
            elif token.text in (".attribute", ".managed", ".unified"):
                if self.accept("("):
                    while self.next().text != ")":
                        pass
            elif token.text[1:] in TYPES:
                return align, TYPES[token.text[1:]], lanes
            else:
                raise CompileError(f"PTX line {token.line}: unknown type '{token.text}'")

    def _initializer(self, element: PtxType) -> list[int | Link]:
        """Bits of the elements, or the addresses that they hold.

        Inner lists are only for the reader: ptxas fills rows without regard to them.
        """
        if not self.accept("{"):
            return [self._initial_value(element)]
        values: list[int | Link] = []
        while not self.accept("}"):
            values += self._initializer(element)
            self.accept(",")
        return values

    def _initial_value(self, element: PtxType) -> int | Link:
        token = self.peek()
        if token.kind == "word":
            return self._address_of(element, None)
        if self.peek(1).text == "(":
            mask = self.integer()
            self.expect("(")
            link = self._address_of(element, mask)
            self.expect(")")
            return link
        literal = self.literal()
        if not element.is_float or literal.float_bits == element.bits:
            return literal.value
        if element.bits not in _FLOAT_FORMATS:
            raise CompileError(f"PTX line {token.line}: '{token.text}' as a value of type '.{element.name}'")
        number: float = literal.value
        if literal.float_bits:
            (number,) = struct.unpack(
                _FLOAT_FORMATS[literal.float_bits], literal.value.to_bytes(8, "little")[: literal.float_bits // 8]
            )
        return int.from_bytes(struct.pack(_FLOAT_FORMATS[element.bits], number), "little")

    def _address_of(self, element: PtxType, mask: int | None) -> Link:
        """`name`, `generic(name)`, each with an offset behind it. Addresses are generic ones here anyway."""
        name, addend = self.next().text, 0
        if name == "generic" and self.accept("("):
            inner = self._address_of(element, mask)
            name, addend = inner.target, inner.addend
            self.expect(")")
        while self.peek().text in ("+", "-"):
            sign = 1 if self.next().text == "+" else -1
            addend += sign * self.integer()
        return Link(0, element.size_bytes, name, addend, mask)

    def parameters(self) -> list[Variable]:
        """The parameters of a function, in parentheses."""
        self.expect("(")
        params: list[Variable] = []
        while not self.accept(")"):
            space = self.next().text
            if space == ".reg":
                raise CompileError(f"PTX line {self.peek().line}: '.reg' parameters are not supported")
            align, element, _ = self._pointer_or_type()
            name = self.next().text
            count = 1
            while self.accept("["):
                count *= self.integer() if self.peek().text != "]" else 0
                self.expect("]")
            params.append(Variable(name, "param", align or element.size_bytes, count * element.size_bytes, None))
            self.accept(",")
        return params

    def _pointer_or_type(self) -> tuple[int, PtxType, int]:
        align, element, lanes = self.declared_type()
        if self.accept(".ptr"):
            while self.peek().kind == "dot":
                if self.next().text == ".align":
                    self.integer()
        return align, element, lanes


def _packed(element: PtxType, values: Sequence[int | Link], count: int) -> tuple[bytes, tuple[Link, ...]]:
    """The bytes of an initial value, with zeros where addresses go, and those addresses."""
    size = element.size_bytes
    mask = (1 << (8 * size)) - 1
    packed = b"".join((0 if isinstance(v, Link) else v & mask).to_bytes(size, "little") for v in values)
    links = (replace(v, offset=size * place) for place, v in enumerate(values) if isinstance(v, Link))
    return packed.ljust(count * size, b"\0"), tuple(links)
