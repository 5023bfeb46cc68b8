"""Loads, stores and calls at plain integer addresses, on which the runtime's functions are built.

Each compiles to one native instruction, see `codegen/functions/python_subset.py`. Called from Python they do the same.
"""

from __future__ import annotations

import ctypes

_FROM_HOST = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_WARP_CODE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_int64, ctypes.c_int64)


def load8(address: int) -> int:
    """Load the byte at `address`, unsigned."""
    return ctypes.c_uint8.from_address(address).value


def load16(address: int) -> int:
    """Load the unsigned 16-bit word at `address`."""
    return ctypes.c_uint16.from_address(address).value


def load32(address: int) -> int:
    """Load the unsigned 32-bit word at `address`."""
    return ctypes.c_uint32.from_address(address).value


def load64(address: int) -> int:
    """Load the signed 64-bit word at `address`."""
    return ctypes.c_int64.from_address(address).value


def store8(address: int, value: int) -> None:
    """Store the low 8 bits of `value`."""
    ctypes.c_uint8.from_address(address).value = value


def store16(address: int, value: int) -> None:
    """Store the low 16 bits of `value`."""
    ctypes.c_uint16.from_address(address).value = value


def store32(address: int, value: int) -> None:
    """Store the low 32 bits of `value`."""
    ctypes.c_uint32.from_address(address).value = value


def store64(address: int, value: int) -> None:
    """Store all 64 bits of `value`."""
    ctypes.c_int64.from_address(address).value = value


def fill_ones(address: int, count: int) -> None:
    """Set `count` bytes to 0xFF, which is NaN in every floating-point type."""
    ctypes.memset(address, 0xFF, count)


def call_host(function: int, argument: int) -> None:
    """Call a host function that takes an integer and returns nothing."""
    _FROM_HOST(function)(argument)


def call_warp(entry: int, context: int, warp: int) -> int:
    """Run one warp's generated code until it exits, waits or faults. Returns the 32-bit status."""
    return int(_WARP_CODE(entry)(context, warp))
