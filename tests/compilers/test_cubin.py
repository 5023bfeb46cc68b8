from __future__ import annotations

import struct

from harness.compilers.cubin import section_bytes


def elf(*sections: tuple[str, int]) -> bytes:
    """An ELF file of 64 bits with empty space where sections would be, and their names at the end."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in (*sections, (".shstrtab", 0)))
    table = 64
    first_name = table + 64 * (len(sections) + 2)
    entries = [struct.pack("<IIQQQQIIQQ", *[0] * 10)]
    for name, size in (*sections, (".shstrtab", len(names))):
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        entries.append(struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, first_name, size, 0, 0, 1, 0))
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF", 2, 190, 1, 0, 0, table, 0, 64, 0, 0, 64, len(entries), len(entries) - 1
    )
    return header + b"".join(entries) + names


def test_the_size_of_a_section_by_its_whole_name():
    cubin = elf((".text.kernel", 640), (".text.kernel2", 1280))
    assert section_bytes(cubin, ".text.kernel") == 640
    assert section_bytes(cubin, ".text.kernel2") == 1280
    assert section_bytes(cubin, ".text") is None
