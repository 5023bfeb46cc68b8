"""Floating-point formats over Python's integers: every operation exact, then rounded once.

Knows nothing of NumPy's or the CPU's arithmetic, so that it can be held against both. None stands for NaN.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from operands import UNSIGNED, Array

ROUNDINGS = ("rn", "rz", "rm", "rp")
_GUARD_BITS = 2


@dataclass(frozen=True)
class Format:
    """An IEEE-like binary format; patterns are integers."""

    bits: int
    exponent_bits: int

    @functools.cached_property
    def fraction_bits(self) -> int:
        return self.bits - 1 - self.exponent_bits

    @functools.cached_property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @functools.cached_property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.fraction_bits

    @functools.cached_property
    def one(self) -> int:
        return ((1 << (self.exponent_bits - 1)) - 1) << self.fraction_bits

    @functools.cached_property
    def unit(self) -> int:
        """The exponent of the smallest subnormal."""
        return 2 - (1 << (self.exponent_bits - 1)) - self.fraction_bits

    def is_nan(self, pattern: int) -> bool:
        return pattern & (self.sign_bit - 1) > self.infinity

    def is_infinite(self, pattern: int) -> bool:
        return pattern & (self.sign_bit - 1) == self.infinity

    def is_zero(self, pattern: int) -> bool:
        return pattern & (self.sign_bit - 1) == 0

    def is_negative(self, pattern: int) -> bool:
        return bool(pattern & self.sign_bit)

    def flushed(self, pattern: int) -> int:
        """`.ftz`: a subnormal becomes the zero of its sign."""
        return pattern if pattern & self.infinity else pattern & self.sign_bit

    def integer(self, pattern: int) -> int:
        """A finite number in multiples of 2**unit."""
        fraction = pattern & ((1 << self.fraction_bits) - 1)
        exponent = (pattern & self.infinity) >> self.fraction_bits
        magnitude = fraction if exponent == 0 else (fraction | 1 << self.fraction_bits) << (exponent - 1)
        return -magnitude if self.is_negative(pattern) else magnitude

    def order(self, pattern: int) -> int:
        """An integer that sorts as numbers do, -0 below +0."""
        magnitude = pattern & (self.sign_bit - 1)
        return -magnitude - 1 if self.is_negative(pattern) else magnitude

    def zero(self, negative: bool) -> int:
        return self.sign_bit if negative else 0

    def infinite(self, negative: bool) -> int:
        return self.infinity | self.zero(negative)

    def rounded(self, number: int, unit: int, mode: str = "rn") -> int:
        """The pattern of number * 2**unit; an exact zero is +0."""
        if number == 0:
            return 0
        negative, magnitude = number < 0, abs(number)
        last = max(magnitude.bit_length() + unit - self.fraction_bits - 1, self.unit)
        if last <= unit:
            kept = magnitude << (unit - last)
        else:
            kept, rest = divmod(magnitude, 1 << (last - unit))
            half = 1 << (last - unit - 1)
            away = {
                "rn": rest > half or (rest == half and kept & 1 == 1),
                "rna": rest >= half,
                "rz": False,
                "rm": negative and rest > 0,
                "rp": not negative and rest > 0,
            }[mode]
            kept += away
        # A carry out of the fraction moves into the exponent by itself.
        exponent = last - self.unit
        pattern = kept + (exponent << self.fraction_bits)
        if pattern >= self.infinity:
            outward = mode in ("rn", "rna") or (mode == "rm" and negative) or (mode == "rp" and not negative)
            pattern = self.infinity if outward else self.infinity - 1
        return pattern | self.zero(negative)

    # Operations: patterns in, pattern or None out ---------------------------------------------------------------------

    def fma(self, a: int, b: int, c: int, mode: str = "rn") -> int | None:
        if self.is_nan(a) or self.is_nan(b) or self.is_nan(c):
            return None
        product_negative = self.is_negative(a) != self.is_negative(b)
        if self.is_infinite(a) or self.is_infinite(b):
            if self.is_zero(a) or self.is_zero(b):
                return None
            if self.is_infinite(c) and self.is_negative(c) != product_negative:
                return None
            return self.infinite(product_negative)
        if self.is_infinite(c):
            return c
        total = self.integer(a) * self.integer(b) + (self.integer(c) << -self.unit)
        if total == 0:
            both = product_negative and self.is_negative(c)
            neither = not product_negative and not self.is_negative(c)
            return self.zero(both or (mode == "rm" and not neither))
        return self.rounded(total, 2 * self.unit, mode)

    def add(self, a: int, b: int, mode: str = "rn") -> int | None:
        return self.fma(a, self.one, b, mode)

    def sub(self, a: int, b: int, mode: str = "rn") -> int | None:
        return self.add(a, b ^ self.sign_bit, mode)

    def mul(self, a: int, b: int, mode: str = "rn") -> int | None:
        negative = self.is_negative(a) != self.is_negative(b)
        return self.fma(a, b, self.zero(negative), mode)

    def div(self, a: int, b: int, mode: str = "rn") -> int | None:
        if self.is_nan(a) or self.is_nan(b):
            return None
        negative = self.is_negative(a) != self.is_negative(b)
        if self.is_infinite(a) or self.is_zero(b):
            special = self.is_infinite(b) if self.is_infinite(a) else self.is_zero(a)
            return None if special else self.infinite(negative)
        if self.is_infinite(b) or self.is_zero(a):
            return self.zero(negative)
        over, under = abs(self.integer(a)), abs(self.integer(b))
        # Enough bits that the last one only says whether something is left.
        shift = max(0, self.fraction_bits + _GUARD_BITS + 1 + under.bit_length() - over.bit_length())
        quotient, rest = divmod(over << shift, under)
        sticky = quotient << 1 | (rest != 0)
        return self.rounded(-sticky if negative else sticky, -shift - 1, mode)

    def sqrt(self, a: int, mode: str = "rn") -> int | None:
        if self.is_nan(a) or (self.is_negative(a) and not self.is_zero(a)):
            return None
        if self.is_zero(a) or self.is_infinite(a):
            return a
        shift = 2 * (self.fraction_bits + _GUARD_BITS) + (self.unit & 1)
        scaled = self.integer(a) << shift
        root = math.isqrt(scaled)
        return self.rounded(root << 1 | (root * root != scaled), (self.unit - shift) // 2 - 1, mode)

    def extreme(self, a: int, b: int, largest: bool, nan: bool = False) -> int | None:
        """min or max; a NaN gives way to a number unless `nan`."""
        if self.is_nan(a) or self.is_nan(b):
            if nan or (self.is_nan(a) and self.is_nan(b)):
                return None
            return b if self.is_nan(a) else a
        return (max if largest else min)(a, b, key=self.order)

    def saturated(self, pattern: int | None) -> int:
        """`.sat`: to [+0, 1], NaN becomes +0."""
        if pattern is None or self.is_negative(pattern):
            return 0
        return min(pattern, self.one)

    def converted(self, pattern: int, target: Format, mode: str = "rn") -> int | None:
        """The same number in another format."""
        if self.is_nan(pattern):
            return None
        if self.is_infinite(pattern):
            return target.infinite(self.is_negative(pattern))
        if self.is_zero(pattern):
            return target.zero(self.is_negative(pattern))
        return target.rounded(self.integer(pattern), self.unit, mode)

    def integral(self, pattern: int, mode: str) -> int:
        """A finite number rounded to an integer: `rni`, `rzi`, `rmi` or `rpi`."""
        number, one = self.integer(pattern), 1 << -self.unit
        whole, rest = divmod(number, one)
        up = {
            "rni": 2 * rest > one or (2 * rest == one and whole & 1 == 1),
            "rzi": number < 0 and rest > 0,
            "rmi": False,
            "rpi": rest > 0,
        }[mode]
        return whole + up


F16, BF16, F32, F64 = Format(16, 5), Format(16, 8), Format(32, 8), Format(64, 11)
FORMATS = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64}


def each_float(target: Format, function: Callable[..., int | None], *operands: Array) -> Array:
    """`function` of one tuple of patterns at a time; NaN is the hardware's own, all ones but for the sign."""
    nan = target.sign_bit - 1
    found = (function(*patterns) for patterns in zip(*(o.tolist() for o in operands)))
    return np.array([nan if pattern is None else pattern for pattern in found], dtype=UNSIGNED[target.bits])


def nans_of(target: Format) -> Callable[[Array], Array]:
    """Tells which patterns of an array are NaN."""
    return lambda patterns: (patterns & UNSIGNED[target.bits](target.sign_bit - 1)) > target.infinity


def through_pairs(function: Callable[..., int]) -> Callable[..., int]:
    """A function of 16-bit patterns -> the same on both halves of 32-bit ones."""

    def both(*patterns: int) -> int:
        low, high = function(*(p & 0xFFFF for p in patterns)), function(*(p >> 16 for p in patterns))
        return high << 16 | low

    return both
