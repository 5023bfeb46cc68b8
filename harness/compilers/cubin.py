"""What a cubin says of itself. It is an ELF file of 64 bits, little-endian."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")


def section_bytes(cubin: bytes, name: str) -> int | None:
    """The size of a section, such as `.text.kernel` for a kernel's machine code; None where there is none."""
    header = _HEADER.unpack_from(cubin)
    offset, count, names = header[6], header[12], header[13]
    sections = [_SECTION.unpack_from(cubin, offset + _SECTION.size * index) for index in range(count)]
    first_name = sections[names][4]
    for section in sections:
        start = first_name + section[0]
        if cubin[start : cubin.index(b"\0", start)] == name.encode():
            return int(section[5])
    return None
