"""Operands worth trying: every edge against every edge, and random bits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_EXPONENT_BITS = {"f16": 5, "bf16": 8, "f32": 8, "f64": 11}
_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


def integers(bits: int, count: int, edges: int = 300, random: int = 200, seed: int = 0) -> tuple[Array, ...]:
    """`count` arrays of one length: a sample of all tuples of edge values, then random bits of random magnitude."""
    top = 1 << (bits - 1)
    values = [0, 1, 2, 3, 7, bits - 1, bits, bits + 1, top - 1, top, top + 1, 2 * top - 2, 2 * top - 1, top // 3]
    return _mix(bits, values, count, edges, random, seed, lambda rng: int(rng.integers(0, bits)))


def floats(kind: str, count: int, edges: int = 400, random: int = 300, seed: int = 0) -> tuple[Array, ...]:
    """The same for a floating-point format, as bits; random operands have exponents near each other."""
    bits, exponent_bits = _WIDTH[kind], _EXPONENT_BITS[kind]
    fraction = bits - 1 - exponent_bits
    one = ((1 << (exponent_bits - 1)) - 1) << fraction
    infinity = ((1 << exponent_bits) - 1) << fraction
    unit = 1 << fraction
    magnitudes = [0, 1, unit // 2, unit - 1, unit, unit + 1, one - unit, one, one + 1, one + unit // 2, one + unit]
    magnitudes += [infinity - 1, infinity, infinity + 1, infinity + unit // 2, one + (fraction + 1) * unit, one - 1]
    values = [sign << (bits - 1) | m for sign in (0, 1) for m in magnitudes]
    near = floats_near_one(kind, count, random, seed)
    wild = _mix(bits, values, count, edges, random // 3, seed, lambda rng: 0)
    return tuple(np.concatenate(pair) for pair in zip(wild, near))


def floats_near_one(kind: str, count: int, random: int, seed: int = 0) -> tuple[Array, ...]:
    """Random floats of either sign within a few binary orders of 1."""
    bits, exponent_bits = _WIDTH[kind], _EXPONENT_BITS[kind]
    fraction = bits - 1 - exponent_bits
    rng = np.random.default_rng([seed, bits, count])
    found = []
    for _ in range(count):
        exponent = (1 << (exponent_bits - 1)) - 1 + rng.integers(-6, 7, random)
        mantissa = rng.integers(0, 1 << fraction, random)
        sign = rng.integers(0, 2, random)
        whole = [int(s) << (bits - 1) | int(e) << fraction | int(m) for s, e, m in zip(sign, exponent, mantissa)]
        found.append(np.array(whole, dtype=UNSIGNED[bits]))
    return tuple(found)


def _mix(
    bits: int,
    values: Sequence[int],
    count: int,
    edges: int,
    random: int,
    seed: int,
    shift: Callable[[np.random.Generator], int],
) -> tuple[Array, ...]:
    rng = np.random.default_rng([seed, bits, count])
    rows = list(itertools.product(values, repeat=count)) if len(values) ** count <= 4096 else []
    if not rows or len(rows) > edges:
        rows = [tuple(int(rng.choice(np.array(values, dtype=object))) for _ in range(count)) for _ in range(edges)]
    for _ in range(random):
        rows.append(tuple(int.from_bytes(rng.bytes(bits // 8), "little") >> shift(rng) for _ in range(count)))
    return tuple(np.array(column, dtype=UNSIGNED[bits]) for column in zip(*rows))


def signed(value: int, bits: int) -> int:
    """The two's complement reading of a bit pattern."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def each(function: Callable[..., int], bits: int, *operands: Array) -> Array:
    """`function` over Python integers, one tuple of operands at a time; the low bits of its results."""
    mask = (1 << bits) - 1
    dtype = np.bool_ if bits == 1 else UNSIGNED[bits]
    return np.array([int(function(*values)) & mask for values in zip(*(o.tolist() for o in operands))], dtype=dtype)
