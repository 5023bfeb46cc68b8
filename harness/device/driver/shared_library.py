"""Writes a shared library of jump stubs, and loads it under a SONAME that other libraries will look for.

The library needs no compiler: it is an ELF file of one code and one data segment. Each exported function is a jump
through a slot of a table in the data segment, which Python fills with callbacks of `ctypes`:

    cuInit:  jmp *[rip + slot 0]        cuDeviceGet:  jmp *[rip + slot 1]        ...

(on aarch64 `adrp`, `ldr` and `br` by register x16, which the calling convention leaves to such stubs).

Initially, and again after `disconnect`, every slot contains the address of a function that returns a fixed status.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.support.errors import SandboxError

_SYMBOL = struct.Struct("<IBBHQQ")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_FILE_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ, _WRITE, _EXECUTE = 4, 2, 1
_DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SYMENT, _DT_SONAME = 4, 5, 6, 10, 11, 14
_GLOBAL_FUNCTION, _GLOBAL_OBJECT = 0x12, 0x11
_CODE_SECTION, _DATA_SECTION = 1, 2
"""Any section numbers but 0, which means undefined; the file has no section headers."""
TABLE = "emulated_function_table"
"""Name of the exported table of slots."""
IDLE = "emulated_function_idle"
"""Name of the exported function that returns the fixed status."""


@dataclass(frozen=True)
class Machine:
    """Machine code of a kind of processor."""

    number: int
    """Its number in ELF files."""
    page_bytes: int
    """The largest size of a page that Linux uses on it."""
    stub_bytes: int
    jump: Callable[[int, int], bytes]
    """A stub at one address that jumps to the address in a slot at another."""
    returned: Callable[[int], bytes]
    """A function that returns a number of 16 bits."""


def _x86_jump(stub: int, slot: int) -> bytes:
    # jmp *[rip + distance]; the distance is counted from the end of the instruction
    return b"\xff\x25" + struct.pack("<i", slot - (stub + 6)) + b"\xcc\xcc"


def _x86_return(value: int) -> bytes:
    return b"\xb8" + struct.pack("<I", value) + b"\xc3\xcc\xcc"  # mov eax, value; ret


_X16 = 16


def _arm_jump(stub: int, slot: int) -> bytes:
    pages = (slot >> 12) - (stub >> 12)
    adrp = 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | _X16  # x16 = the slot's page of 4 KiB
    ldr = 0xF9400000 | (slot & 0xFFF) // 8 << 10 | _X16 << 5 | _X16
    return struct.pack("<4I", adrp, ldr, 0xD61F0000 | _X16 << 5, 0xD4200000)  # br x16; brk 0


def _arm_return(value: int) -> bytes:
    return struct.pack("<4I", 0x52800000 | value << 5, 0xD65F03C0, 0xD4200000, 0xD4200000)  # mov w0, value; ret


X86_64 = Machine(62, 4096, 8, _x86_jump, _x86_return)
AARCH64 = Machine(183, 65536, 16, _arm_jump, _arm_return)
_MACHINES = {"x86_64": X86_64, "AMD64": X86_64, "aarch64": AARCH64, "arm64": AARCH64}
"""By the name that Python gives the machine."""


class SharedLibrary:
    """A loaded library that exports `names`; calls of all of them return `idle_status` until they are connected.

    It stays loaded until the process ends. Other libraries that open `soname` afterwards get it, because the loader
    compares the SONAMEs of what is loaded. Raises `SandboxError` on other machines than x86-64 and aarch64.
    """

    def __init__(self, soname: str, names: Sequence[str], idle_status: int) -> None:
        machine = _MACHINES.get(platform.machine())
        if machine is None:
            raise SandboxError(f"the emulated driver runs on x86-64 and aarch64; this machine is {platform.machine()}")
        # A file in memory: no directory has to be writable, and nobody else can change it. It stays open, because the
        # loader identifies libraries by path, and the path of a closed file would name the next one.
        self._file = os.memfd_create(soname)
        with os.fdopen(self._file, "wb", closefd=False) as stream:
            stream.write(elf_image(soname, names, idle_status, machine))
        self._library = ctypes.CDLL(f"/proc/self/fd/{self._file}", mode=ctypes.RTLD_GLOBAL)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._table = (ctypes.c_uint64 * len(names)).in_dll(self._library, TABLE)
        self._idle = self._address_of(IDLE)
        self._callbacks: dict[str, Any] = {}
        self.disconnect()

    def _address_of(self, name: str) -> int:
        address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        assert address is not None
        return address

    def address(self, name: str) -> int | None:
        """Address of an exported function; None if there is none with this name."""
        return self._address_of(name) if name in self._numbers else None

    def connect(self, name: str, callback: Any, address: int | None = None) -> None:
        """Let an exported function call `callback`, an instance of a type that `ctypes.CFUNCTYPE` returned.

        With `address`, it calls the function there, which in turn calls `callback`.
        """
        address = address or ctypes.cast(callback, ctypes.c_void_p).value
        assert address is not None
        self._callbacks[name] = callback  # kept alive
        self._table[self._numbers[name]] = address

    def disconnect(self) -> None:
        """Let all functions return the fixed status. Call before the interpreter is finalized."""
        for number in range(len(self._table)):
            self._table[number] = self._idle


def elf_image(soname: str, names: Sequence[str], idle_status: int, machine: Machine) -> bytes:
    """The content of a shared library that exports a stub per name, `IDLE` and `TABLE`."""
    strings = bytearray(b"\0")

    def string(text: str) -> int:
        strings.extend(text.encode() + b"\0")
        return len(strings) - len(text) - 1

    exported = [*names, IDLE, TABLE]
    offsets = [string(name) for name in exported]
    soname_offset = string(soname)
    hash_at = _FILE_HEADER.size + 4 * _PROGRAM_HEADER.size
    hashes = _hash_table(exported)
    symbols_at = _rounded(hash_at + len(hashes), 8)
    strings_at = symbols_at + _SYMBOL.size * (1 + len(exported))
    code_at = _rounded(strings_at + len(strings), 16)
    code_bytes = machine.stub_bytes * (len(names) + 1)
    data_at = _rounded(code_at + code_bytes, machine.page_bytes)
    dynamic = b"".join(
        _DYNAMIC_ENTRY.pack(*entry)
        for entry in (
            (_DT_SONAME, soname_offset),
            (_DT_HASH, hash_at),
            (_DT_STRTAB, strings_at),
            (_DT_SYMTAB, symbols_at),
            (_DT_STRSZ, len(strings)),
            (_DT_SYMENT, _SYMBOL.size),
            (0, 0),
        )
    )
    table_at = data_at + len(dynamic)
    end = table_at + 8 * len(names)
    stubs = [code_at + machine.stub_bytes * number for number in range(len(names) + 1)]
    code = b"".join(machine.jump(stub, table_at + 8 * number) for number, stub in enumerate(stubs[:-1]))
    code += machine.returned(idle_status)
    symbols = bytearray(_SYMBOL.size)
    for offset, stub in zip(offsets, stubs):
        symbols += _SYMBOL.pack(offset, _GLOBAL_FUNCTION, 0, _CODE_SECTION, stub, machine.stub_bytes)
    symbols += _SYMBOL.pack(offsets[-1], _GLOBAL_OBJECT, 0, _DATA_SECTION, table_at, 8 * len(names))
    headers = b"".join(
        _PROGRAM_HEADER.pack(kind, flags, at, at, at, size, size, align)
        for kind, flags, at, size, align in (
            (_LOAD, _READ | _EXECUTE, 0, code_at + code_bytes, machine.page_bytes),
            (_LOAD, _READ | _WRITE, data_at, end - data_at, machine.page_bytes),
            (_DYNAMIC, _READ | _WRITE, data_at, len(dynamic), 8),
            (_STACK, _READ | _WRITE, 0, 0, 16),
        )
    )
    image = bytearray(end)
    for at, part in (
        (0, _file_header(machine)),
        (_FILE_HEADER.size, headers),
        (hash_at, hashes),
        (symbols_at, symbols),
        (strings_at, strings),
        (code_at, code),
        (data_at, dynamic),
    ):
        image[at : at + len(part)] = part
    return bytes(image)


def _file_header(machine: Machine) -> bytes:
    shared_object, version = 3, 1
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    sizes = (_FILE_HEADER.size, _PROGRAM_HEADER.size, 4, 0, 0, 0)
    return _FILE_HEADER.pack(identity, shared_object, machine.number, version, 0, _FILE_HEADER.size, 0, 0, *sizes)


def _hash_table(names: Sequence[str]) -> bytes:
    """The `DT_HASH` table of symbols 1, 2, ... (System V ABI, "Hash Table")."""
    buckets = [0] * max(1, len(names))
    chains = [0] * (len(names) + 1)
    for number, name in enumerate(names, start=1):
        bucket = _hash(name) % len(buckets)
        chains[number], buckets[bucket] = buckets[bucket], number
    return struct.pack(f"<{2 + len(buckets) + len(chains)}I", len(buckets), len(chains), *buckets, *chains)


def _hash(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


def _rounded(size: int, step: int) -> int:
    return -(-size // step) * step
