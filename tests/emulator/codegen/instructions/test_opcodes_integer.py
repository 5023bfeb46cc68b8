"""Integer arithmetic and the carry flag, against Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from operands import each, integers, signed
from single_opcode import Check, case, check

TYPES = ("u16", "s16", "u32", "s32", "u64", "s64")


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return -1 if b == 0 else a - b * quotient(a, b)


TWO_OPERANDS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda n, a, b: a + b,
    "sub": lambda n, a, b: a - b,
    "mul.lo": lambda n, a, b: a * b,
    "mul.hi": lambda n, a, b: a * b >> n,
    "div": lambda n, a, b: quotient(a, b),
    "rem": lambda n, a, b: remainder(a, b),
    "min": lambda n, a, b: min(a, b),
    "max": lambda n, a, b: max(a, b),
}
THREE_OPERANDS: dict[str, Callable[[int, int, int, int], int]] = {
    "mad.lo": lambda n, a, b, c: a * b + c,
    "mad.hi": lambda n, a, b, c: (a * b >> n) + c,
    "sad": lambda n, a, b, c: abs(a - b) + c,
}


def reader(kind: str) -> Callable[[int], int]:
    bits = int(kind[1:])
    return (lambda x: signed(x, bits)) if kind[0] == "s" else (lambda x: x)


@pytest.mark.parametrize("kind", TYPES)
def test_arithmetic_of_every_width(kind: str):
    bits, read = int(kind[1:]), reader(kind)
    a, b = integers(bits, 2)
    x, y, z = integers(bits, 3)
    checks: list[Check] = []
    for name, model in TWO_OPERANDS.items():
        expected = each(lambda p, q, model=model: model(bits, read(p), read(q)), bits, a, b)
        checks.append((case(f"{name}.{kind} d, a, b;", f"b{bits}", a, b), (expected,)))
    for name, model in THREE_OPERANDS.items():
        expected = each(lambda p, q, r, model=model: model(bits, read(p), read(q), read(r)), bits, x, y, z)
        checks.append((case(f"{name}.{kind} d, a, b, c;", f"b{bits}", x, y, z), (expected,)))
    if kind[0] == "s":
        checks.append((case(f"abs.{kind} d, a;", f"b{bits}", a), (each(lambda p: abs(read(p)), bits, a),)))
        checks.append((case(f"neg.{kind} d, a;", f"b{bits}", a), (each(lambda p: -p, bits, a),)))
    if bits < 64:
        (wide_c,) = integers(2 * bits, 1, edges=len(x), random=0)
        wide_c = np.resize(wide_c, len(x))
        product = each(lambda p, q: read(p) * read(q), 2 * bits, a, b)
        total = each(lambda p, q, r: read(p) * read(q) + r, 2 * bits, x, y, wide_c)
        checks.append((case(f"mul.wide.{kind} d, a, b;", f"b{2 * bits}", a, b), (product,)))
        checks.append((case(f"mad.wide.{kind} d, a, b, c;", f"b{2 * bits}", x, y, wide_c), (total,)))
    check(checks)


def clamped(value: int, bits: int = 32) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, value))


def test_saturation_at_the_limits_of_s32():
    a, b, c = integers(32, 3)
    s = lambda x: signed(x, 32)  # noqa: E731
    check(
        [
            (case("add.sat.s32 d, a, b;", "b32", a, b), (each(lambda p, q: clamped(s(p) + s(q)), 32, a, b),)),
            (case("sub.sat.s32 d, a, b;", "b32", a, b), (each(lambda p, q: clamped(s(p) - s(q)), 32, a, b),)),
            (
                case("mad.hi.sat.s32 d, a, b, c;", "b32", a, b, c),
                (each(lambda p, q, r: clamped((s(p) * s(q) >> 32) + s(r)), 32, a, b, c),),
            ),
            (case("min.relu.s32 d, a, b;", "b32", a, b), (each(lambda p, q: max(0, min(s(p), s(q))), 32, a, b),)),
            (case("max.relu.s32 d, a, b;", "b32", a, b), (each(lambda p, q: max(0, s(p), s(q)), 32, a, b),)),
        ]
    )


@pytest.mark.parametrize("bits", [32, 64])
def test_the_carry_flag_joins_words(bits: int):
    """Two words wide: what comes out is Python's sum, difference, or product plus addend, of 2n bits."""
    a, b, c, f = integers(bits, 4)
    both = lambda low, high: high << bits | low  # noqa: E731
    word = f"b{bits}"
    checks: list[Check] = []
    for opcode, sign in (("add", 1), ("sub", -1)):
        for kind in (f"u{bits}", f"s{bits}"):
            total = lambda p, q, r, s, sign=sign: both(p, q) + sign * both(r, s)  # noqa: E731
            low = each(total, bits, a, b, c, f)
            high = each(lambda *v, total=total: total(*v) >> bits, bits, a, b, c, f)
            text = f"{opcode}.cc.{kind} d, a, c; {opcode}c.{kind} e, b, f;"
            checks.append((case(text, f"{word} {word}", a, b, c, f), (low, high)))
            # Three words: `.cc` of addc and subc, read by one more; 0 + 0 + carry, 0 - 0 - borrow.
            carry = each(lambda *v, total=total: total(*v) >> 2 * bits, bits, a, b, c, f)
            text += f" {opcode}.cc.{kind} d, a, c; {opcode}c.cc.{kind} e, b, f; {opcode}c.{kind} d, 0, 0;"
            checks.append((case(text, f"{word} {word}", a, b, c, f), (carry, high)))
    product = lambda p, q, r, s: p * q + both(r, s)  # noqa: E731
    low, high = each(product, bits, a, b, c, f), each(lambda *v: product(*v) >> bits, bits, a, b, c, f)
    text = f"mad.lo.cc.u{bits} d, a, b, c; madc.hi.u{bits} e, a, b, f;"
    checks.append((case(text, f"{word} {word}", a, b, c, f), (low, high)))
    carry = each(lambda *v: product(*v) >> 2 * bits, bits, a, b, c, f)
    text = f"mad.lo.cc.u{bits} d, a, b, c; madc.hi.cc.u{bits} e, a, b, f; addc.u{bits} d, 0, 0;"
    checks.append((case(text, f"{word} {word}", a, b, c, f), (carry, high)))
    # madc.lo.cc: the carry of a sum of three, where either addition may overflow.
    sums = lambda p, q, r, s: (p * q & ((1 << bits) - 1)) + s + (p + r >> bits)  # noqa: E731
    text = f"add.cc.u{bits} d, a, c; madc.lo.cc.u{bits} d, a, b, f; addc.u{bits} e, 0, 0;"
    expected = each(sums, bits, a, b, c, f), each(lambda *v: sums(*v) >> bits, bits, a, b, c, f)
    checks.append((case(text, f"{word} {word}", a, b, c, f), expected))
    check(checks)


def test_the_carry_flag_outlives_a_basic_block():
    a, b = integers(32, 2)
    text = "add.cc.u32 d, a, b; bra NEXT; NEXT: addc.u32 e, 0, 0;"
    check([(case(text, "b32 b32", a, b), (a + b, each(lambda p, q: p + q >> 32, 32, a, b)))])


@pytest.mark.parametrize("kind", ["u32", "s32"])
def test_products_of_24_bits(kind: str):
    a, b, c = integers(32, 3)
    low = (lambda x: signed(x, 24)) if kind == "s32" else (lambda x: x & 0xFFFFFF)
    checks: list[Check] = []
    for part, shift in (("lo", 0), ("hi", 16)):
        product = each(lambda p, q, shift=shift: low(p) * low(q) >> shift, 32, a, b)
        total = each(lambda p, q, r, shift=shift: (low(p) * low(q) >> shift) + r, 32, a, b, c)
        checks.append((case(f"mul24.{part}.{kind} d, a, b;", "b32", a, b), (product,)))
        checks.append((case(f"mad24.{part}.{kind} d, a, b, c;", "b32", a, b, c), (total,)))
    check(checks)


def parts(value: int, width: int, kind: str) -> list[int]:
    pieces = [value >> place & ((1 << width) - 1) for place in range(0, 32, width)]
    return [signed(p, width) if kind[0] == "s" else p for p in pieces]


@pytest.mark.parametrize("kinds", [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")])
def test_dot_products(kinds: tuple[str, str]):
    a, b, c = integers(32, 3)
    first, second = kinds
    dot4 = lambda p, q, r: r + sum(x * y for x, y in zip(parts(p, 8, first), parts(q, 8, second)))  # noqa: E731
    checks: list[Check] = [(case(f"dp4a.{first}.{second} d, a, b, c;", "b32", a, b, c), (each(dot4, 32, a, b, c),))]
    for part, start in (("lo", 0), ("hi", 2)):

        def dot2(p: int, q: int, r: int, start: int = start) -> int:
            return r + sum(x * y for x, y in zip(parts(p, 16, first), parts(q, 8, second)[start : start + 2]))

        checks.append((case(f"dp2a.{part}.{first}.{second} d, a, b, c;", "b32", a, b, c), (each(dot2, 32, a, b, c),)))
    check(checks)


@pytest.mark.parametrize("kind", ["u16x2", "s16x2"])
def test_pairs_of_16_bits(kind: str):
    a, b = integers(32, 2)
    halves: dict[str, Callable[[int, int], int]] = {"add": lambda x, y: x + y, "min": min, "max": max}
    if kind[0] == "s":
        halves |= {"min.relu": lambda x, y: max(0, min(x, y)), "max.relu": lambda x, y: max(0, x, y)}
    checks: list[Check] = []
    for name, model in halves.items():

        def pair(p: int, q: int, model: Any = model) -> int:
            low, high = (model(x, y) & 0xFFFF for x, y in zip(parts(p, 16, kind), parts(q, 16, kind)))
            return high << 16 | low

        checks.append((case(f"{name}.{kind} d, a, b;", "b32", a, b), (each(pair, 32, a, b),)))
    check(checks)


def test_literals_and_wider_registers():
    """A register wider than the type is cut; a result narrower than its register is extended by its sign."""
    (a,) = integers(32, 1)
    (b,) = integers(16, 1)
    check(
        [
            (case("add.s32 d, a, -7;", "b32", a), (a - np.uint32(7),)),
            (case("mul.lo.u32 d, a, 0x10001U;", "b32", a), (a * np.uint32(0x10001),)),
            (case("sub.s64 d, 0, 5;", "b64", a), (np.full(a.shape, -5 % 2**64, dtype=np.uint64),)),
            (case("and.b32 d, a, 0b1011;", "b32", a), (a & np.uint32(0b1011),)),
            (case("add.u32 d, a, 010;", "b32", a), (a + np.uint32(8),)),
            (case("cvt.s32.s8 d, a;", "b32", b), (each(lambda p: signed(p, 8), 32, b),)),
        ]
    )
