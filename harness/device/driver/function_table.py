"""The table of the driver's functions: each row has a C symbol, its parameters, its version and a Python function."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

Implementation = TypeVar("Implementation", bound=Callable[..., "int | None"])

_TYPES: dict[str, Any] = {
    "p": ctypes.c_uint64,
    "i": ctypes.c_int32,
    "u": ctypes.c_uint32,
    "s": ctypes.c_uint16,
    "c": ctypes.c_uint8,
    "f": ctypes.c_float,
}
_VERSION_SUFFIX = re.compile(r"_v\d+$")


@dataclass(frozen=True)
class DriverFunction:
    """A function of the driver."""

    symbol: str
    """Name that the library exports, such as `cuMemAlloc_v2`."""
    parameters: str
    """A letter per parameter: p for a pointer, handle or size_t, i and u for a 32-bit integer, s for 16 bits, c for
    8 bits, f for a float. Pointers are given to the implementation as integers."""
    since: int
    """First version of CUDA, as 1000 major + 10 minor, whose `cuGetProcAddress` returns this symbol for its base
    name."""
    call: Callable[..., int | None]
    """Called with the `Driver` and the arguments. Returns a status, or None for success."""

    @property
    def base_name(self) -> str:
        """The symbol without a suffix such as `_v2`."""
        return _VERSION_SUFFIX.sub("", self.symbol)

    @property
    def prototype(self) -> Any:
        """The type of `ctypes` for a callback with these parameters."""
        return ctypes.CFUNCTYPE(ctypes.c_int, *(_TYPES[letter] for letter in self.parameters))


FUNCTIONS: dict[str, DriverFunction] = {}
"""All implemented functions by symbol. The modules in `functions/` add theirs when they are imported."""


def driver_function(symbol: str, parameters: str = "", since: int = 0) -> Callable[[Implementation], Implementation]:
    """Register the decorated function as the implementation of a symbol. It is called with the `Driver` first."""

    def register(call: Implementation) -> Implementation:
        assert symbol not in FUNCTIONS, symbol
        FUNCTIONS[symbol] = DriverFunction(symbol, parameters, since, call)
        return call

    return register


def versions_of(name: str) -> Iterator[DriverFunction]:
    """The implemented functions with this base name, newest first."""
    found = (function for function in FUNCTIONS.values() if function.base_name == name)
    yield from sorted(found, key=lambda function: function.since, reverse=True)


def write_pointer(address: int, value: int) -> None:
    """Store 8 bytes at an address of the caller, unless it is null."""
    if address:
        ctypes.c_uint64.from_address(address).value = value


def write_int(address: int, value: int) -> None:
    """Store 4 bytes at an address of the caller, unless it is null."""
    if address:
        ctypes.c_int32.from_address(address).value = value


def read_int(address: int) -> int:
    """The 4 bytes at an address of the caller."""
    return ctypes.c_int32.from_address(address).value


def read_text(address: int) -> str:
    """The C string at an address of the caller."""
    return ctypes.string_at(address).decode(errors="replace")


def host_function(address: int, parameters: str) -> Callable[..., None]:
    """A function of the caller that returns nothing, such as a callback."""
    return ctypes.CFUNCTYPE(None, *(_TYPES[letter] for letter in parameters))(address)
