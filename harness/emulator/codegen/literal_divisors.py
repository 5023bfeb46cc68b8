"""Divides doubles by a literal with multiplications, which CPUs do several times as fast, and rounds correctly.

The reciprocal of the literal is known to twice the precision of a double, so the product with it is one of the two
doubles next to the quotient, and one more step rounds it correctly (Markstein, 'Computation of elementary functions on
the IBM RISC System/6000 processor', 1990; theorem 4.8 in Muller et al., 'Handbook of floating-point arithmetic', 2018).
"""

from __future__ import annotations

import math
from fractions import Fraction

from harness.emulator.codegen.vector_ir_builder import splat, splat_float, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter

_MOST_EXPONENT = 400
"""Binary exponents of divisor and dividends up to which no intermediate result overflows or is subnormal."""
_FEW_BITS = 50
"""The exact quotient with a divisor of n significant bits is further than a 2^(n + 54)th of it from where rounding
changes, and the product that is rounded closer than a 2^105th to the quotient. With so few bits that decides."""
_BIAS, _FRACTION_BITS = 1023, 52


def is_suitable(divisor: float) -> bool:
    """Whether `divide` takes it. LLVM multiplies by the reciprocal of a power of two itself."""
    fraction, exponent = math.frexp(divisor)
    return math.isfinite(divisor) and abs(fraction) not in (0, 0.5) and abs(exponent) < _MOST_EXPONENT


def divide(lanes: WarpEmitter, dividends: str, divisor: float) -> str:
    """The quotients of 32 doubles, by one division if an active lane's dividend is zero, huge, tiny or not finite."""
    bits = lanes.cast("bitcast", "double", dividends, "i64")
    magnitude = lanes.binary("shl", "i64", bits, splat("i64", 1))
    least, most = (_BIAS + exponent << _FRACTION_BITS + 1 for exponent in (-_MOST_EXPONENT, _MOST_EXPONENT))
    above = lanes.binary("sub", "i64", magnitude, splat("i64", least))
    inside = lanes.bits_of(lanes.compare("ult", "i64", above, splat("i64", most - least)))
    outside = lanes.op(f"and i32 {lanes.op(f'xor i32 {inside}, -1')}, {lanes.active_bits()}")
    special, usual, after = (lanes.fresh_label(word) for word in ("special", "usual", "divided"))
    is_special = lanes.op(f"icmp ne i32 {outside}, 0")
    lanes.do(f"br i1 {is_special}, label %{special}, label %{usual}, !prof !0")
    lanes.label(special)
    divided = lanes.binary("fdiv", "double", dividends, splat_float("double", divisor))
    lanes.do(f"br label %{after}")
    lanes.label(usual)
    upper = 1 / Fraction(divisor)
    high = float(upper)
    low = float(upper - Fraction(high))
    correction = lanes.binary("fmul", "double", dividends, splat_float("double", low))
    multiplied = lanes.fma("double", dividends, splat_float("double", high), correction)
    if _significant_bits(divisor) > _FEW_BITS:
        remainder = lanes.fma("double", multiplied, splat_float("double", -divisor), dividends)
        multiplied = lanes.fma("double", remainder, splat_float("double", high), multiplied)
    lanes.do(f"br label %{after}")
    lanes.label(after)
    kind = vector("double")
    return lanes.op(f"phi {kind} [ {divided}, %{special} ], [ {multiplied}, %{usual} ]")


def _significant_bits(number: float) -> int:
    numerator = abs(number.as_integer_ratio()[0])
    return (numerator // (numerator & -numerator)).bit_length()
