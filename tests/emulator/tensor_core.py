"""What a tensor core of Hopper computes, in Python's integers: see harness/emulator/codegen/matrix/dot_product.py."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from exact_floats import BF16, F16, F32, Format
from operands import Array


class _WithoutInfinities(Format):
    """e4m3: NaN is where all bits but the sign are set, and nothing else is special."""

    def is_nan(self, pattern: int) -> bool:
        return pattern & (self.sign_bit - 1) == self.sign_bit - 1

    def is_infinite(self, pattern: int) -> bool:
        return False


KEPT_BITS = 25
KEPT_BITS_OF_8 = 13
"""Where factors have 8 bits."""
LOWEST_EXPONENT = -133
TF32 = Format(19, 8)
"""Held in the upper bits of 32."""
E4M3, E5M2 = _WithoutInfinities(8, 4), Format(8, 5)
FORMATS = {"f16": F16, "bf16": BF16, "tf32": TF32, "f32": F32, "e4m3": E4M3, "e5m2": E5M2}


def dot_product(
    kinds: str, accumulator: str, a: Sequence[int], b: Sequence[int], c: int, kept_bits: int | None = None
) -> int:
    """The pattern of one element of A B + C, where C and the result are of type `accumulator`.

    `kinds`: the type of the factors, or both types. `kept_bits`: 25 for Blackwell's sums of 8-bit floats.
    """
    forms = [FORMATS[kind] for kind in kinds.split()]
    form, other, target = forms[0], forms[-1], FORMATS[accumulator]
    special = _special(form, other, target, a, b, c)
    if special is not None:
        return special
    if kept_bits is None:
        kept_bits = KEPT_BITS_OF_8 if form.bits == 8 else KEPT_BITS
    addends = [_product(form, other, x, y) for x, y in zip(a, b)]
    addends.append((*_significand(target, c), target.fraction_bits))
    addends = [addend for addend in addends if addend[0]]
    if not addends:
        return 0
    last = max(LOWEST_EXPONENT, *(exponent for _, exponent, _ in addends)) - kept_bits
    total = sum(_cut(significand, exponent - fraction_bits - last) for significand, exponent, fraction_bits in addends)
    if accumulator == "f16":
        rounded = target.rounded(total, last, "rn")
    else:
        rounded = target.rounded(total, last, "rz")
        # What is beyond the largest number, not only what would round there, is infinite.
        if total.bit_length() + last > 128:
            rounded = target.infinite(total < 0)
        if kept_bits < target.fraction_bits:
            rounded &= -1 << (target.fraction_bits - kept_bits)
    return 0 if target.is_zero(rounded) else rounded


def _significand(form: Format, pattern: int) -> tuple[int, int]:
    """An integer with a sign, and the exponent of its bit `fraction_bits`; subnormals have that of normal numbers."""
    exponent = (pattern & form.infinity) >> form.fraction_bits
    fraction = pattern & ((1 << form.fraction_bits) - 1)
    magnitude = fraction | (exponent > 0) << form.fraction_bits
    bias = (1 << (form.exponent_bits - 1)) - 1
    return (-magnitude if form.is_negative(pattern) else magnitude), max(exponent, 1) - bias


def _product(form: Format, other: Format, x: int, y: int) -> tuple[int, int, int]:
    (p, e), (q, f) = _significand(form, x), _significand(other, y)
    return p * q, e + f, form.fraction_bits + other.fraction_bits


def _cut(number: int, shift: int) -> int:
    """number * 2**shift, towards zero."""
    magnitude = abs(number) << shift if shift >= 0 else abs(number) >> -shift
    return -magnitude if number < 0 else magnitude


def _special(form: Format, other: Format, target: Format, a: Sequence[int], b: Sequence[int], c: int) -> int | None:
    """NaN or infinity, where an operand is."""
    nan = target.sign_bit - 1
    signs = set()
    for x, y in zip(a, b):
        if form.is_nan(x) or other.is_nan(y):
            return nan
        if form.is_infinite(x) or other.is_infinite(y):
            if form.is_zero(x) or other.is_zero(y):
                return nan
            signs.add(form.is_negative(x) != other.is_negative(y))
    if target.is_nan(c):
        return nan
    if target.is_infinite(c):
        signs.add(target.is_negative(c))
    if not signs:
        return None
    return nan if len(signs) == 2 else target.infinite(signs.pop())


def matrix_product(kind: str, accumulator: str, a: Array, b: Array, c: Array) -> Array:
    """Patterns of A B + C; the matrices are the last two axes."""
    if kind == "tf32":
        a, b = a >> np.uint32(13), b >> np.uint32(13)
    d = np.empty(c.shape, c.dtype)
    for place in np.ndindex(c.shape[:-2]):
        rows, columns = a[place].tolist(), b[place].T.tolist()
        for i, row in enumerate(rows):
            for j, column in enumerate(columns):
                d[(*place, i, j)] = dot_product(kind, accumulator, row, column, int(c[(*place, i, j)]))
    return d
