"""Reads the symbols of an ELF object file, such as CuTe DSL's host code (System V ABI, "Symbol Table")."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from harness.support.errors import CompileError

_FILE_HEADER = struct.Struct("<40xQ10xHHH")
_SECTION = struct.Struct("<II2QQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SYMBOL_TABLE = 2


@dataclass(frozen=True)
class Symbol:
    """A symbol of an object file."""

    name: str
    data: bytes | None
    """The bytes that it names; None if the file does not define it."""


def symbols(image: bytes) -> tuple[Symbol, ...]:
    """Return the named symbols of an object file. Raises `CompileError` if it is no 64-bit little-endian ELF file."""
    if not image.startswith(b"\x7fELF\x02\x01"):
        raise CompileError("the host code of a CuTe function is no 64-bit ELF object file")
    at, each, count, _ = _FILE_HEADER.unpack_from(image)
    sections = [_SECTION.unpack_from(image, at + each * number) for number in range(count)]
    found = []
    for _, kind, _, _, begin, size, link, _, _, _ in sections:
        if kind == _SYMBOL_TABLE:
            names = sections[link][4]
            found += [_symbol(image, sections, names, begin + at) for at in range(0, size, _SYMBOL.size)]
    return tuple(symbol for symbol in found if symbol.name)


def _symbol(image: bytes, sections: list[tuple[int, ...]], names: int, at: int) -> Symbol:
    name, _, _, section, value, size = _SYMBOL.unpack_from(image, at)
    text = image[names + name : image.index(b"\0", names + name)].decode()
    if section == 0:
        return Symbol(text, None)
    begin = sections[section][4] + value if section < len(sections) else 0
    return Symbol(text, image[begin : begin + size])
