"""Reads declarations of parameters, such as `.param .u64 name` in the head of a function: types, sizes, alignments."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping

from harness.ptx.parameters import Parameter
from harness.ptx.parsing.lexer import tokenize
from harness.ptx.parsing.token_stream import TokenStream
from harness.ptx.statements import FunctionText, functions, without_comments
from harness.ptx.types import TYPES, PtxType
from harness.support.errors import CompileError

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
            _, parameter = stream.parameter()
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
        found.append(parameter)
    return tuple(found)
