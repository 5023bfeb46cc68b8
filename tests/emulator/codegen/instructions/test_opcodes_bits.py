"""Logic, shifts, bit fields and byte permutes, bit by bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from operands import each, integers, signed
from single_opcode import Array, Check, case, check

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits: int):
    a, b = integers(bits, 2)
    word = f"b{bits}"
    check(
        [
            (case(f"and.{word} d, a, b;", word, a, b), (a & b,)),
            (case(f"or.{word} d, a, b;", word, a, b), (a | b,)),
            (case(f"xor.{word} d, a, b;", word, a, b), (a ^ b,)),
            (case(f"not.{word} d, a;", word, a), (~a,)),
            (case(f"cnot.{word} d, a;", word, a), ((a == 0).astype(a.dtype),)),
        ]
    )


def test_logic_on_predicates():
    p, q = np.array([False, False, True, True]), np.array([False, True, False, True])
    check(
        [
            (case("and.pred d, a, b;", "pred", p, q), (p & q,)),
            (case("or.pred d, a, b;", "pred", p, q), (p | q,)),
            (case("xor.pred d, a, b;", "pred", p, q), (p ^ q,)),
            (case("not.pred d, a;", "pred", p), (~p,)),
            (case("mov.pred d, a;", "pred", p), (p,)),
            (case("and.pred d, a, !b;", "pred", p, q), (p & ~q,)),
        ]
    )


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_beyond_the_width(bits: int):
    (a,) = integers(bits, 1, edges=14, random=2 * bits + 20)
    amounts = np.array([*range(2 * bits + 9), 255, 256, 1 << 16, (1 << 32) - bits, (1 << 32) - 1], dtype=np.uint32)
    a, by = np.resize(a, 8 * amounts.size), np.resize(amounts, 8 * amounts.size)
    right = each(lambda x, n: x >> n, bits, a, by)
    arithmetic = each(lambda x, n: signed(x, bits) >> n, bits, a, by)
    left = each(lambda x, n: x << n if n < bits else 0, bits, a, by)
    word = f"b{bits}"
    check(
        [
            (case(f"shl.b{bits} d, a, b;", word, a, by), (left,)),
            (case(f"shr.b{bits} d, a, b;", word, a, by), (right,)),
            (case(f"shr.u{bits} d, a, b;", word, a, by), (right,)),
            (case(f"shr.s{bits} d, a, b;", word, a, by), (arithmetic,)),
            (case(f"shl.b{bits} d, a, {bits + 1};", word, a), (np.zeros_like(a),)),
            (case(f"shr.s{bits} d, a, {bits + 1};", word, a), (each(lambda x: signed(x, bits) >> bits, bits, a),)),
            (case(f"shr.u{bits} d, a, 3;", word, a), (a >> a.dtype.type(3),)),
        ]
    )


def test_funnel_shifts():
    a, b, _ = integers(32, 3)
    c = np.resize(np.array([*range(70), 1 << 31, (1 << 32) - 1], dtype=np.uint32), a.size)

    def model(left: bool, wrap: bool) -> Callable[[int, int, int], int]:
        def shift(low: int, high: int, amount: int) -> int:
            n = amount & 31 if wrap else min(amount, 32)
            both = high << 32 | low
            return (both << n) >> 32 if left else both >> n

        return shift

    check(
        [
            (case(f"shf.{way}.{mode}.b32 d, a, b, c;", "b32", a, b, c), (each(model(left, wrap), 32, a, b, c),))
            for way, left in (("l", True), ("r", False))
            for mode, wrap in (("wrap", True), ("clamp", False))
        ]
    )


def test_lop3_tables():
    a, b, c = integers(32, 3, edges=40, random=80)
    checks: list[Check] = []
    for table in (0x00, 0xFF, 0x80, 0x01, 0xF0, 0xCC, 0xAA, 0x96, 0xE8, 0xCA, 0x1A, 0x40, *RNG.integers(0, 256, 12)):

        def model(x: int, y: int, z: int, table: int = int(table)) -> int:
            rows = ((x >> i & 1) << 2 | (y >> i & 1) << 1 | (z >> i & 1) for i in range(32))
            return sum((table >> row & 1) << i for i, row in enumerate(rows))

        expected = each(model, 32, a, b, c)
        checks.append((case(f"lop3.b32 d, a, b, c, {int(table)};", "b32", a, b, c), (expected,)))
    q = a % 3 == 0
    same = each(lambda x, y: x & y, 32, a, b)
    text = "lop3.{0}.b32 d|e, a, b, c, 0xC0, f;"
    checks.append((case(text.format("and"), "b32 pred", a, b, c, q), (same, (same != 0) & q)))
    checks.append((case(text.format("or"), "b32 pred", a, b, c, q), (same, (same != 0) | q)))
    check(checks)


def test_permuted_bytes():
    a, b, c = integers(32, 3)
    c = np.concatenate([c, RNG.integers(0, 1 << 32, 300, dtype=np.uint32)])
    a, b = np.resize(a, c.size), np.resize(b, c.size)

    def pick(low: int, high: int, selectors: list[int]) -> int:
        source = (high << 32 | low).to_bytes(8, "little")
        chosen = [(0xFF if source[s & 7] & 0x80 else 0) if s & 8 else source[s & 7] for s in selectors]
        return int.from_bytes(bytes(chosen), "little")

    def default(low: int, high: int, control: int) -> int:
        return pick(low, high, [control >> 4 * i & 15 for i in range(4)])

    def backward(low: int, high: int, control: int) -> int:
        return pick(low, high, [((control & 3) - i) % 8 for i in range(4)])

    modes: dict[str, Callable[[int, int, int], int]] = {
        "": default,
        ".f4e": lambda x, y, z: pick(x, y, [(z & 3) + i for i in range(4)]),
        ".b4e": backward,
        ".rc8": lambda x, y, z: pick(x, y, [z & 3] * 4),
        ".ecl": lambda x, y, z: pick(x, y, [max(i, z & 3) for i in range(4)]),
        ".ecr": lambda x, y, z: pick(x, y, [min(i, z & 3) for i in range(4)]),
        ".rc16": lambda x, y, z: pick(x, y, [2 * (z & 1) + i % 2 for i in range(4)]),
    }
    checks: list[Check] = [
        (case(f"prmt.b32{mode} d, a, b, c;", "b32", a, b, c), (each(model, 32, a, b, c),))
        for mode, model in modes.items()
    ]
    checks.append((case("prmt.b32 d, a, b, 0x5410;", "b32", a, b), (a & np.uint32(0xFFFF) | b << np.uint32(16),)))
    check(checks)


def most_significant(value: int, bits: int, is_signed: bool) -> int | None:
    value = ~signed(value, bits) if is_signed and value >> (bits - 1) else value
    return value.bit_length() - 1 if value else None


@pytest.mark.parametrize("bits", [32, 64])
def test_counting_and_finding_bits(bits: int):
    (a,) = integers(bits, 1, random=500)
    checks: list[Check] = [
        (case(f"popc.b{bits} d, a;", "b32", a), (each(lambda x: x.bit_count(), 32, a),)),
        (case(f"clz.b{bits} d, a;", "b32", a), (each(lambda x: bits - x.bit_length(), 32, a),)),
        (case(f"brev.b{bits} d, a;", f"b{bits}", a), (each(lambda x: int(f"{x:0{bits}b}"[::-1], 2), bits, a),)),
    ]
    for kind in "us":

        def place(x: int, kind: str = kind) -> int:
            found = most_significant(x, bits, kind == "s")
            return -1 if found is None else found

        def amount(x: int, kind: str = kind) -> int:
            found = most_significant(x, bits, kind == "s")
            return -1 if found is None else bits - 1 - found

        checks.append((case(f"bfind.{kind}{bits} d, a;", "b32", a), (each(place, 32, a),)))
        checks.append((case(f"bfind.shiftamt.{kind}{bits} d, a;", "b32", a), (each(amount, 32, a),)))
    check(checks)


def odd_lengths(bits: int, count: int) -> Array:
    values = np.array([0, 1, 7, 8, bits - 1, bits, bits + 1, 127, 128, 200, 255, 256, 0x1FF, 1 << 31], dtype=np.uint32)
    return np.where(RNG.integers(0, 2, count) == 0, RNG.choice(values, count), RNG.integers(0, bits + 2, count)).astype(
        np.uint32
    )


def extracted(value: int, start: int, length: int, bits: int, is_signed: bool) -> int:
    start, length, top = start & 0xFF, length & 0xFF, bits - 1
    sign = value >> min(start + length - 1, top) & 1 if is_signed and length else 0
    picked = (value >> (start + i) & 1 if i < length and start + i <= top else sign for i in range(bits))
    return sum(bit << i for i, bit in enumerate(picked))


def inserted(field: int, into: int, start: int, length: int, bits: int) -> int:
    start, length = start & 0xFF, length & 0xFF
    for i in range(min(length, bits - start)):
        into = into & ~(1 << (start + i)) | (field >> i & 1) << (start + i)
    return into


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_fields_of_odd_lengths(bits: int):
    a, b = integers(bits, 2, random=400)
    start, length = odd_lengths(bits, a.size), odd_lengths(bits, a.size)
    if bits == 64:  # Larger ones are not defined, and an H200 takes 8 bits of them in the 32-bit forms only.
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
    word = f"b{bits}"
    checks: list[Check] = []
    for kind in "us":
        expected = each(lambda v, s, n, kind=kind: extracted(v, s, n, bits, kind == "s"), bits, a, start, length)
        checks.append((case(f"bfe.{kind}{bits} d, a, b, c;", word, a, start, length), (expected,)))
    expected = each(lambda f, i, s, n: inserted(f, i, s, n, bits), bits, a, b, start, length)
    checks.append((case(f"bfi.{word} d, a, b, c, f;", word, a, b, start, length), (expected,)))
    expected = each(lambda v: extracted(v, 5, 9, bits, True), bits, a)
    checks.append((case(f"bfe.s{bits} d, a, 5, 9;", word, a), (expected,)))
    check(checks)


def test_bit_masks():
    a = odd_lengths(32, 600)
    b = odd_lengths(32, 600)
    clamp = each(lambda s, n: ((1 << min(n, 32)) - 1) << s if s < 32 else 0, 32, a, b)
    wrap = each(lambda s, n: ((1 << n % 32) - 1) << s % 32, 32, a, b)
    check(
        [
            (case("bmsk.clamp.b32 d, a, b;", "b32", a, b), (clamp,)),
            (case("bmsk.wrap.b32 d, a, b;", "b32", a, b), (wrap,)),
        ]
    )


def extended(value: int, count: int, clamps: bool, is_signed: bool) -> int:
    """The pseudo-code of szext in the PTX ISA."""
    low, too_large = count & 31, count >= 32 and clamps
    mask = 0 if too_large else ~0 << low
    sign = not (low == 0 or too_large or not is_signed) and value >> (low - 1) & 1
    return value & ~mask | (mask if sign else 0)


def test_extending_the_low_bits():
    a, b = integers(32, 2, random=400)
    b = np.concatenate([b[:300], np.resize(np.arange(40, dtype=np.uint32), b.size - 300)])
    checks: list[Check] = []
    for mode, kind in itertools.product(("clamp", "wrap"), ("u32", "s32")):
        expected = each(lambda v, n, m=mode, k=kind: extended(v, n, m == "clamp", k == "s32"), 32, a, b)
        checks.append((case(f"szext.{mode}.{kind} d, a, b;", "b32", a, b), (expected,)))
    check(checks)
