"""Declarations of variables and parameters: their space, type, alignment, extents and initial values."""

from __future__ import annotations

import struct

from harness.emulator.ptx.instructions import Variable
from harness.emulator.ptx.token_stream import TokenStream
from harness.emulator.ptx.types import TYPES, PtxType
from harness.support.errors import CompileError, UnsupportedInstruction

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
            initial = None
            if self.accept("="):
                values = self._initializer(element)
                count = count if sized else len(values)
                sized = True
                initial = self._pack_initial(element, values, count)
            variables.append(
                Variable(
                    name,
                    space[1:],
                    align or lanes * element.size_bytes,
                    count * element.size_bytes if sized else 0,
                    initial,
                    extern,
                    element,
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

    def _initializer(self, element: PtxType) -> list[int]:
        """Bits of the elements. Inner lists are only for the reader: ptxas fills rows without regard to them."""
        if not self.accept("{"):
            return [self._initial_value(element)]
        values: list[int] = []
        while not self.accept("}"):
            values += self._initializer(element)
            self.accept(",")
        return values

    def _initial_value(self, element: PtxType) -> int:
        token = self.peek()
        if token.kind == "word":
            raise UnsupportedInstruction(
                f"the emulator does not support a variable initialised with an address ('{token.text}' at PTX line "
                f"{token.line}): a pointer to another variable or to a function"
            )
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

    @staticmethod
    def _pack_initial(element: PtxType, values: list[int], count: int) -> bytes:
        size = element.size_bytes
        mask = (1 << (8 * size)) - 1
        packed = b"".join((v & mask).to_bytes(size, "little") for v in values)
        return packed.ljust(count * size, b"\0")

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
