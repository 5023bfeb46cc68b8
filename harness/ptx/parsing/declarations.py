"""Reads declarations of variables and parameters: space, type, alignment, extents and initial values."""

from __future__ import annotations

import functools
import struct
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.ptx.instructions import Link, Variable
from harness.ptx.parameters import Parameter
from harness.ptx.parsing.constant_expressions import WARP_SZ, ConstantExpressions
from harness.ptx.parsing.lexer import tokenize
from harness.ptx.parsing.token_stream import TokenStream
from harness.ptx.statements import FunctionText, functions, without_comments
from harness.ptx.types import TYPES, PtxType
from harness.support.errors import CompileError

LINKAGE = {".extern", ".visible", ".weak", ".common"}
SPACES = {".global", ".const", ".shared", ".local", ".param"}
_FLOAT_FORMATS = {32: "<f", 64: "<d"}
_LARGEST_BYTES = {".const": 1 << 16, ".local": 1 << 19, ".param": 1 << 15, ".shared": 1 << 31, ".global": 1 << 31}
"""Largest variable in bytes, by space. These are hardware limits, except for `.shared`, which a launch checks, and
`.global`."""
_INITIALISED = (".global", ".const")
_DEEPEST_INITIALIZER = 16


_LARGEST_ALIGNMENT = 1024
_SHOWN = 80
"""Maximum characters of a declaration that a message quotes."""


class ParameterDeclarations(TokenStream):
    """Reads types and the parameters of functions."""

    def declared_type(self) -> tuple[int, PtxType, int]:
        """Read `[.align n] [.v2|.v4|.v8] .type`. Returns alignment (0 if not given), type, and elements per vector."""
        align, lanes = 0, 1
        while True:
            token = self.next()
            if token.text == ".align":
                align = self._alignment()
            elif token.text in (".v2", ".v4", ".v8"):
                lanes = int(token.text[2:])
            elif token.text in (".attribute", ".managed", ".unified"):
                if self.accept("("):
                    while self.next().text != ")":
                        pass
            elif token.kind == "dot" and token.text[1:] in TYPES:
                return align, TYPES[token.text[1:]], lanes
            else:
                raise CompileError(f"PTX line {token.line}: unknown type '{token.shown}'")

    def type_in_memory(self) -> tuple[int, PtxType, int]:
        """Read the type of a variable in memory, which cannot be a predicate."""
        line = self.peek().line
        align, element, lanes = self.declared_type()
        if not element.size_bytes:
            raise CompileError(f"PTX line {line}: a variable of type '.{element.name}', which only registers have")
        return align, element, lanes

    def _alignment(self) -> int:
        line = self.peek().line
        align = self.count()
        if not 0 < align <= _LARGEST_ALIGNMENT or align & (align - 1):
            raise CompileError(
                f"PTX line {line}: an alignment of {align} bytes; it is a power of two of at most {_LARGEST_ALIGNMENT}"
            )
        return align

    def parameter(self) -> tuple[str, Parameter]:
        """Read a parameter after its `.param`. Returns its name and layout."""
        align, element, count = self.type_in_memory()
        natural_bytes = count * element.size_bytes
        if self.accept(".ptr"):
            while self.peek().kind == "dot":
                if self.next().text == ".align":
                    self._alignment()
        name = self.name()
        is_array = count > 1
        while self.accept("["):
            is_array = True
            count *= self.count() if self.peek().text != "]" else 0
            self.expect("]")
        return name, Parameter(element.name, count * element.size_bytes, align or natural_bytes, is_array)


@functools.lru_cache(maxsize=256)
def entry_parameters(ptx: str) -> Mapping[str, tuple[Parameter, ...]]:
    """Return the parameters of every kernel of the module, by mangled name, in order.

    Raises `CompileError` if a declaration is not valid PTX.
    """
    return {function.name: _parameters(ptx, function) for function in functions(ptx) if function.is_entry}


def _parameters(ptx: str, entry: FunctionText) -> tuple[Parameter, ...]:
    text = "" if entry.parameters is None else without_comments(ptx[slice(*entry.parameters)])
    found = []
    for declaration in filter(None, (part.strip() for part in text.split(","))):
        try:
            stream = ParameterDeclarations(tokenize(f"{declaration};"))
            stream.expect(".param")
            name, parameter = stream.parameter()
            stream.expect(";")
            if not parameter.size_bytes:
                raise CompileError("an array without extent")
        except CompileError:
            shown = textwrap.shorten(declaration, _SHOWN, placeholder="...")
            line = 1 + ptx.count("\n", 0, entry.start)
            raise CompileError(
                f"kernel {entry.name}, PTX line {line}: its PTX declares a parameter as {shown!r}; "
                "write it like .param .u64 name"
            ) from None
        found.append(replace(parameter, name=name))
    return tuple(found)


class Declarations(ConstantExpressions, ParameterDeclarations):
    """Part of the parser that reads declarations."""

    def variables(self) -> list[Variable]:
        """Read a declaration of one or more variables."""
        extern = False
        while self.peek().text in LINKAGE:
            extern |= self.next().text == ".extern"
        directive = self.next()
        space = directive.text
        if space not in SPACES:
            raise CompileError(f"PTX line {directive.line}: unknown state space '{directive.shown}'")
        align, element, lanes = self.type_in_memory()
        variables = []
        while True:
            line = self.peek().line
            name = self.name()
            count, sized = lanes, True
            while self.accept("["):
                if self.accept("]"):
                    sized = False
                    continue
                count *= self._extent()
                self.expect("]")
            initial: bytes | None = None
            links: tuple[Link, ...] = ()
            if self.accept("="):
                if space not in _INITIALISED:
                    raise CompileError(f"PTX line {line}: '{name}' lies in '{space}', which has no initial values")
                values = self._initializer(element)
                if sized and len(values) > count:
                    raise CompileError(f"PTX line {line}: {len(values)} initial values for the {count} of '{name}'")
                count = count if sized else len(values)
                sized = True
                initial, links = _packed(element, values)
            _require_size(line, space, name, count * element.size_bytes)
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
            if not self.more(";"):
                return variables

    def _extent(self) -> int:
        """Read the number of elements of an array in one dimension."""
        line, extent = self.peek().line, self.constant_integer()
        if extent < 0:
            raise CompileError(f"PTX line {line}: an array of {extent} elements")
        return extent

    def _initializer(self, element: PtxType, depth: int = 1) -> list[int | Link]:
        """Read an initializer. Returns the bits of the elements, or the addresses that they hold.

        The nesting of lists has no effect, because ptxas fills rows without regard to it.
        """
        if not self.accept("{"):
            return [self._initial_value(element)]
        if depth > _DEEPEST_INITIALIZER:
            raise CompileError(
                f"PTX line {self.peek().line}: initial values in more than {_DEEPEST_INITIALIZER} braces"
            )
        values: list[int | Link] = []
        while not values or self.more("}"):
            values += self._initializer(element, depth + 1)
        return values

    def _initial_value(self, element: PtxType) -> int | Link:
        token = self.peek()
        if token.kind == "word" and token.text != WARP_SZ:
            return self._address_of(element, None)
        if token.kind == "number" and self.peek(1).text == "(":
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
        try:
            packed = struct.pack(_FLOAT_FORMATS[element.bits], number)
        except OverflowError:
            raise CompileError(f"PTX line {token.line}: '{token.shown}' is no value of '.{element.name}'") from None
        return int.from_bytes(packed, "little")

    def _address_of(self, element: PtxType, mask: int | None) -> Link:
        """Read `name` or `generic(name)`, each with an optional offset. All addresses are generic in the emulator."""
        name, addend = self.name(), 0
        if name == "generic" and self.accept("("):
            inner = self._address_of(element, mask)
            name, addend = inner.target, inner.addend
            self.expect(")")
        return Link(0, element.size_bytes, name, addend + self.offset(), mask)

    def parameters(self) -> list[Variable]:
        """Read a function's parameters in parentheses. Those in `.reg` are variables of the space `reg`."""
        self.expect("(")
        params: list[Variable] = []
        if self.accept(")"):
            return params
        while not params or self.more(")"):
            space = self.next()
            if space.text == ".reg":
                _, element, lanes = self.declared_type()
                if lanes != 1:
                    raise CompileError(f"PTX line {space.line}: vector registers are not supported as parameters")
                params.append(Variable(self.name(), "reg", 0, element.size_bytes, element=element))
                continue
            if space.text != ".param":
                raise CompileError(f"PTX line {space.line}: '{space.shown}' parameters are not supported")
            name, parameter = self.parameter()
            before_bytes = sum(p.size_bytes for p in params if p.space == "param")
            _require_size(space.line, ".param", name, before_bytes + parameter.size_bytes)
            element = TYPES[parameter.type]
            params.append(Variable(name, "param", parameter.align_bytes, parameter.size_bytes, element=element))
        return params


def _require_size(line: int, space: str, name: str, size_bytes: int) -> None:
    if size_bytes > _LARGEST_BYTES[space]:
        raise CompileError(
            f"PTX line {line}: with '{name}' there are {size_bytes} bytes in '{space}'; "
            f"at most {_LARGEST_BYTES[space]} can be"
        )


def _packed(element: PtxType, values: Sequence[int | Link]) -> tuple[bytes, tuple[Link, ...]]:
    """Return the values as bytes, with zeros in place of addresses, and the addresses. Trailing zeros are omitted."""
    size = element.size_bytes
    mask = (1 << (8 * size)) - 1
    packed = b"".join((0 if isinstance(v, Link) else v & mask).to_bytes(size, "little") for v in values)
    links = (replace(v, offset=size * place) for place, v in enumerate(values) if isinstance(v, Link))
    return packed, tuple(links)
