"""Arithmetic of doubles that are given as their 64 bits, for functions of the runtime that compute with floats.

Each function compiles to one native instruction, see `codegen/functions/double_operations.py`. Called from Python they
do the same.
"""

from __future__ import annotations

import math
import struct


def bits_of(value: float) -> int:
    """The bits of a constant."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def from_float(bits: int) -> int:
    """The double equal to the float with these 32 bits."""
    return bits_of(struct.unpack("<f", struct.pack("<I", bits & 0xFFFFFFFF))[0])


def to_float(x: int) -> int:
    """The 32 bits of the float nearest to a double."""
    value = _value(x)
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return int(struct.unpack("<I", packed)[0])


def from_integer(number: int) -> int:
    """The double nearest to a signed integer."""
    return bits_of(float(number))


def to_integer(x: int) -> int:
    """The integer part of a double, which has to have fewer than 63 bits."""
    return int(_value(x))


def add(x: int, y: int) -> int:
    """The sum of two doubles."""
    return bits_of(_value(x) + _value(y))


def multiply(x: int, y: int) -> int:
    """The product of two doubles."""
    return bits_of(_value(x) * _value(y))


def divide(x: int, y: int) -> int:
    """The quotient of two doubles. The second is not 0."""
    return bits_of(_value(x) / _value(y))


def floor(x: int) -> int:
    """The largest integer that is not above a double, as a double."""
    value = _value(x)
    return bits_of(math.floor(value)) if math.isfinite(value) else x


def magnitude(x: int) -> int:
    """A double without its sign."""
    return bits_of(abs(_value(x)))


def less(x: int, y: int) -> bool:
    """Whether a double is below another; false for NaN."""
    return _value(x) < _value(y)
