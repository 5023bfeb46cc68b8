"""mov and cvt: every pair of types, every rounding, against exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from exact_floats import F16, F32, F64, FORMATS, ROUNDINGS, Format, each_float, nans_of
from operands import UNSIGNED, Array, each, floats, integers, signed
from single_opcode import Case, Check, case, check, run_cases

INTEGERS = tuple(f"{kind}{bits}" for kind in "us" for bits in (8, 16, 32, 64))
FLOATS = ("f16", "bf16", "f32", "f64")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")


def width(kind: str) -> int:
    return FORMATS[kind].bits if kind in FORMATS else int(kind[1:])


def limits(kind: str) -> tuple[int, int]:
    bits = width(kind)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def value_of(kind: str) -> Callable[[int], int]:
    bits = width(kind)
    return (lambda p: signed(p, bits)) if kind[0] == "s" else (lambda p: p & ((1 << bits) - 1))


def integer_operands(kind: str) -> Array:
    """Of at least 16 bits, the narrowest register; the bits above the type are noise that must not count."""
    (values,) = integers(max(16, width(kind)), 1, edges=20, random=120)
    return values


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_integers(source: str):
    operands, value = integer_operands(source), value_of(source)
    checks: list[Check] = []
    for target in INTEGERS:
        low, high = limits(target)
        for register in {max(16, width(target)), 64}:
            # A register wider than the target is filled with its sign, or zeros.
            cut = each(lambda p, target=target: value_of(target)(value(p)), register, operands)
            checks.append((case(f"cvt.{target}.{source} d, a;", f"b{register}", operands), (cut,)))
            clamped = each(lambda p, low=low, high=high: max(low, min(high, value(p))), register, operands)
            if not low <= limits(source)[0] <= limits(source)[1] <= high:
                checks.append((case(f"cvt.sat.{target}.{source} d, a;", f"b{register}", operands), (clamped,)))
    check(checks)


def float_operands(kind: str) -> Array:
    """Edges, numbers near 1, and numbers near every limit of an integer type."""
    form = FORMATS[kind]
    (values,) = floats(kind, 1, edges=34, random=60)
    edges = []
    for limit in {limit for target in INTEGERS for limit in limits(target)}:
        for numerator in (4 * limit, 4 * limit + 1, 4 * limit + 2, 4 * limit + 3, 4 * limit + 4, 4 * limit - 2):
            edges.append(form.rounded(numerator, -2))
    halves = [form.rounded(numerator, -1) for numerator in range(-9, 10)]
    return np.concatenate([values, np.array(edges + halves, dtype=values.dtype)])


@pytest.mark.parametrize("source", FLOATS)
def test_floats_to_integers(source: str):
    form, operands = FORMATS[source], float_operands(source)

    def to_integer(pattern: int, target: str, mode: str, ftz: bool) -> int:
        low, high = limits(target)
        pattern = form.flushed(pattern) if ftz else pattern
        if form.is_nan(pattern):
            return value_of(target)(1 << (width(target) - 1)) if 64 in (form.bits, width(target)) else 0
        if form.is_infinite(pattern):
            return low if form.is_negative(pattern) else high
        return max(low, min(high, form.integral(pattern, mode)))

    checks: list[Check] = []
    for index, target in enumerate(INTEGERS):
        register = max(16, width(target))
        for mode in INTEGRAL:
            for ftz in (False, True) if source == "f32" else (False,):
                expected = each(lambda p, t=target, m=mode, z=ftz: to_integer(p, t, m, z), register, operands)
                sat = ".sat" if (index + INTEGRAL.index(mode)) % 4 == 0 and source != "bf16" else ""
                text = f"cvt.{mode}{'.ftz' * ftz}{sat}.{target}.{source} d, a;"
                checks.append((case(text, f"b{register}", operands), (expected,)))
    check(checks)


@pytest.mark.parametrize("source", INTEGERS)
def test_integers_to_floats(source: str):
    value = value_of(source)
    bits = width(source)
    noise = integer_operands(source)
    # Ties and near-ties for every fraction length.
    near = [1 << e | 1 << max(0, e - f - 1) | tail for e in range(bits) for f in (7, 10, 23, 52) for tail in (0, 1)]
    operands = np.concatenate([noise, np.array(near + [-n % (1 << bits) for n in near], dtype=noise.dtype)])
    checks: list[Check] = []
    for target in FLOATS:
        form = FORMATS[target]
        for mode in ROUNDINGS:
            if (bits, form.bits, mode == "rn") == (64, 64, False):
                continue
            expected = each_float(form, lambda p, form=form, mode=mode: form.rounded(value(p), 0, mode), operands)
            checks.append((case(f"cvt.{mode}.{target}.{source} d, a;", f"b{form.bits}", operands), (expected,)))
        if target != "bf16":
            clamped = each_float(form, lambda p, form=form: form.saturated(form.rounded(value(p), 0)), operands)
            checks.append((case(f"cvt.rn.sat.{target}.{source} d, a;", f"b{form.bits}", operands), (clamped,)))
    check(checks)


def converted(source: Format, target: Format, mode: str, ftz: bool) -> Callable[[int], int | None]:
    """`.ftz` concerns f32 alone, at either end; what is rounded to f16 is not flushed. NaN of f64 is cut to 16 bits."""
    shorter = source.fraction_bits - target.fraction_bits

    def model(pattern: int) -> int | None:
        pattern = source.flushed(pattern) if ftz and source is F32 and target is not F16 else pattern
        result = source.converted(pattern, target, mode)
        if result is None and source is F64 and target.bits == 16:
            payload = (pattern & ((1 << source.fraction_bits) - 1)) >> shorter
            return target.infinite(source.is_negative(pattern)) | 1 << (target.fraction_bits - 1) | payload
        if ftz and target is F32 and result is not None:
            # Flushed is what would round below the normal numbers if exponents had no end.
            unbounded = source.converted(pattern, Format(35, 11), mode)
            assert unbounded is not None
            tiny = unbounded & ~Format(35, 11).sign_bit < Format(35, 11).rounded(1, -126)
            return target.zero(target.is_negative(result)) if tiny else result
        return result

    return model


@pytest.mark.parametrize("source", FLOATS)
def test_floats_to_floats(source: str):
    form = FORMATS[source]
    operands = np.concatenate([*floats(source, 2, edges=600, random=300)])
    if form.bits > 16:
        # Between the numbers of the narrower formats, and around where they end.
        for name in FLOATS:
            narrow = FORMATS[name]
            if narrow.bits < form.bits:
                (patterns,) = floats(name, 1, edges=34, random=60)
                exact = [narrow.converted(p, form) for p in patterns.tolist() if not narrow.is_nan(p)]
                step = 1 << (form.fraction_bits - narrow.fraction_bits - 1)
                spread = [p + s for p in exact if p is not None for s in (0, 1, step - 1, step, step + 1)]
                below = [narrow.rounded(1, narrow.unit + narrow.fraction_bits) - 1, 1]
                for number in (narrow.converted(p, form) for p in below):
                    # Just below the smallest normal number, where one more bit would still fit.
                    spread += [] if number is None else [number + s for s in range(2 * step - 3, 2 * step + 3)]
                    spread += [] if number is None else [number + 2 * step + step // 2 + s for s in range(-2, 3)]
                operands = np.concatenate([operands, np.array(spread, dtype=operands.dtype)])
    checks: list[Check] = []
    for target in FLOATS:
        into = FORMATS[target]
        word = f"b{into.bits}"
        modes = ROUNDINGS if into.bits < form.bits or {source, target} == {"f16", "bf16"} else ("",)
        for mode in modes:
            for ftz in (False, True) if "f32" in (source, target) else (False,):
                text = f"cvt{'.' * bool(mode)}{mode}{'.ftz' * ftz}.{target}.{source} d, a;"
                expected = each_float(into, converted(form, into, mode or "rn", ftz), operands)
                checks.append((case(text, word, operands), (expected,)))
        if "bf16" in (source, target):
            continue
        mode = modes[-1]

        def saturated(p: int, into: Format = into, mode: str = mode) -> int:
            return into.saturated(form.converted(p, into, mode or "rn"))

        expected = each_float(into, saturated, operands)
        checks.append((case(f"cvt{'.' * bool(mode)}{mode}.sat.{target}.{source} d, a;", word, operands), (expected,)))
    # 16-bit results have one NaN; of the others any will do.
    wide = {4: nans_of(FORMATS["f32"]), 8: nans_of(FORMATS["f64"])}
    check(checks, lambda patterns: wide.get(patterns.dtype.itemsize, np.zeros_like)(patterns).astype(bool))


@pytest.mark.parametrize("kind", FLOATS)
def test_floats_to_integral_floats(kind: str):
    form, operands = FORMATS[kind], float_operands(kind)

    def integral(pattern: int, mode: str, ftz: bool) -> int | None:
        pattern = form.flushed(pattern) if ftz else pattern
        if form.is_nan(pattern):
            return None
        if form.is_infinite(pattern):
            return pattern
        whole = form.integral(pattern, mode)
        return form.rounded(whole, 0) if whole else form.zero(form.is_negative(pattern))

    checks: list[Check] = []
    for mode in INTEGRAL:
        for ftz in (False, True) if kind == "f32" else (False,):
            expected = each_float(form, lambda p, mode=mode, ftz=ftz: integral(p, mode, ftz), operands)
            text = f"cvt.{mode}{'.ftz' * ftz}.{kind}.{kind} d, a;"
            checks.append((case(text, f"b{form.bits}", operands), (expected,)))
            if kind == "bf16":
                continue
            clamped = each_float(form, lambda p, mode=mode, ftz=ftz: form.saturated(integral(p, mode, ftz)), operands)
            text = f"cvt.{mode}{'.ftz' * ftz}.sat.{kind}.{kind} d, a;"
            checks.append((case(text, f"b{form.bits}", operands), (clamped,)))
    check(checks, nans_of(form))


def narrow_operands() -> Array:
    (patterns,) = floats("f32", 1, edges=34, random=300)
    spread = []
    for name in ("f16", "bf16"):
        narrow = FORMATS[name]
        (edges,) = floats(name, 1, edges=34, random=20)
        spread += [narrow.converted(p, F32) for p in edges.tolist() if not narrow.is_nan(p)]
    steps = [p + s for p in spread if p is not None for s in (0, 1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)]
    return np.concatenate([patterns, np.array(steps, dtype=np.uint32)])


def test_pairs_relu_and_finite_results():
    a = narrow_operands()
    b = np.roll(a, 11)
    checks: list[Check] = []
    for target in ("f16", "bf16"):
        form = FORMATS[target]
        for mode in ("rn", "rz"):
            for relu in ("", ".relu"):
                for finite in ("", ".satfinite"):

                    def one(
                        p: int, form: Format = form, mode: str = mode, relu: str = relu, finite: str = finite
                    ) -> int:
                        result = F32.converted(p, form, mode)
                        if result is None:
                            return form.sign_bit - 1
                        if finite and form.is_infinite(result):
                            result -= 1
                        return 0 if relu and form.is_negative(result) else result

                    text = f"cvt.{mode}{relu}{finite}.{target}.f32 d, a;"
                    checks.append((case(text, "b16", a), (each(one, 16, a),)))
                    text = f"cvt.{mode}{relu}{finite}.{target}x2.f32 d, a, b;"
                    pair = each(lambda p, q, one=one: one(p) << 16 | one(q), 32, a, b)
                    checks.append((case(text, "b32", a, b), (pair,)))
    check(checks)


def test_tf32():
    """An f32 whose 13 low bits are gone."""
    a = narrow_operands()
    tf32 = Format(19, 8)

    def model(mode: str, relu: bool) -> Callable[[int], int]:
        def convert(p: int) -> int:
            result = F32.converted(p, tf32, mode)
            if result is None:
                return p & -(1 << 13) if mode == "rna" else 0x7FFFE000
            return 0 if relu and tf32.is_negative(result) else result << 13

        return convert

    checks: list[Check] = [(case("cvt.rna.tf32.f32 d, a;", "b32", a), (each(model("rna", False), 32, a),))]
    for mode in ("rn", "rz"):
        checks.append((case(f"cvt.{mode}.tf32.f32 d, a;", "b32", a), (each(model(mode, False), 32, a),)))
        checks.append((case(f"cvt.{mode}.relu.tf32.f32 d, a;", "b32", a), (each(model(mode, True), 32, a),)))
    check(checks)


# mov ------------------------------------------------------------------------------------------------------------------


def split(value: Array, parts: int) -> list[Array]:
    """The parts of a register, lowest first."""
    return list(value.view(UNSIGNED[8 * value.dtype.itemsize // parts]).reshape(-1, parts).T)


@pytest.mark.parametrize(("bits", "parts"), [(32, 2), (64, 2), (64, 4)])
def test_vectors_of_parts(bits: int, parts: int):
    part = bits // parts
    (whole,) = integers(bits, 1)
    pieces = [np.ascontiguousarray(p) for p in split(whole, parts)]
    names = ", ".join("abcf"[:parts])
    registers = " ".join(f".reg .b{part} t{i};" for i in range(parts))
    checks: list[Check] = [(case(f"mov.b{bits} d, {{{names}}};", f"b{bits}", *pieces), (whole,))]
    for index, piece in enumerate(pieces):
        items = ", ".join("d" if i == index else ("_" if i % 2 else f"t{i}") for i in range(parts))
        checks.append((case(f"{registers} mov.b{bits} {{{items}}}, a;", f"b{part}", whole), (piece,)))
    check(checks)


def test_moves_and_literals():
    (a,), (x,) = integers(32, 1), floats("f64", 1)
    n = np.zeros(1, np.uint32)
    constants: list[tuple[str, str, int]] = [
        ("mov.f32 d, 0f3F9D70A4;", "b32", 0x3F9D70A4),
        ("mov.f32 d, 0d3FF8000000000000;", "b32", 0x3FC00000),
        ("mov.f64 d, 0d3FF8000000000000;", "b64", 0x3FF8000000000000),
        ("mov.f64 d, 1.5;", "b64", 0x3FF8000000000000),
        ("mov.b64 d, -1;", "b64", (1 << 64) - 1),
        ("mov.u32 d, 0xFFFFFFFFU;", "b32", 0xFFFFFFFF),
        ("mov.b16 d, 0x3C00;", "b16", 0x3C00),
        ("mov.u32 d, WARP_SZ;", "b32", 32),
        ("mov.b64 d, {a, 7};", "b64", 7 << 32),
    ]
    checks: list[Check] = [
        (case(text, kind, n), (np.array([value], dtype=UNSIGNED[int(kind[1:])]),)) for text, kind, value in constants
    ]
    checks.append((case("mov.b32 d, a;", "b32", a), (a,)))
    checks.append((case("mov.f64 d, a;", "b64", x), (x,)))
    check(checks)


def test_noise_in_wide_registers_does_not_count():
    """A value of 8 bits in a register of 64."""
    (a,) = integers(64, 1)
    low = (a & np.uint64(0xFF)).astype(np.uint32)
    cases: list[Case] = [case("cvt.u32.u8 d, a;", "b32", a), case("cvt.rn.f32.u8 d, a;", "b32", a)]
    (integer,), (number,) = run_cases(cases)
    np.testing.assert_array_equal(integer, low)
    np.testing.assert_array_equal(number.view(np.float32), low.astype(np.float32))


NARROW = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2, "e2m3x2": ml_dtypes.float6_e2m3fn,
          "e3m2x2": ml_dtypes.float6_e3m2fn, "e2m1x2": ml_dtypes.float4_e2m1fn}  # fmt: skip


@pytest.mark.parametrize("pair", NARROW)
def test_narrow_pairs(pair: str):
    """Every pattern of f16 and of the pair, and f32 of all sizes, with 8 bits as an H200 has them; NaN has one pattern.

    That of less than 8 bits, which have no NaN, is the largest number (PTX ISA 9.7.9.21).
    """
    dtype = np.dtype(NARROW[pair])
    largest = np.float32(ml_dtypes.finfo(dtype).max)
    bits = {"e2m1x2": 4, "e2m3x2": 6, "e3m2x2": 6}.get(pair, 8)
    pitch, mask, kind = max(bits, 8) if bits != 4 else 4, (1 << bits) - 1, "b8" if bits == 4 else "b16"
    of_nan = 0x7F if bits == 8 else mask >> 1

    def encoded(values: Array, relu: bool) -> Array:
        nan = np.isnan(values)
        values = np.clip(values.astype(np.float32), -largest, largest)
        values = np.where(np.signbit(values) & relu, np.float32(0), values)
        rounded = np.nan_to_num(values).astype(dtype).view(np.uint8)
        return np.where(nan, of_nan, rounded).astype(np.uint16)

    def decoded(byte: Array, relu: bool) -> Array:
        values = (byte & mask).astype(np.uint8).view(dtype).astype(np.float16)
        positive = np.where(np.signbit(values) & relu, np.float16(0), values)
        return np.where(np.isnan(values), 0x7FFF, positive.view(np.uint16)).astype(np.uint32)

    patterns = np.arange(1 << 16, dtype=np.uint32)
    halves = [bits.astype(np.uint16).view(np.float16) for bits in (patterns, patterns ^ 0x8001)]
    both = patterns | (patterns ^ 0x8001) << 16
    rng = np.random.default_rng(11)
    sizes = np.float32(2.0) ** rng.integers(-20, 20, 1 << 14)
    floats = (rng.standard_normal(1 << 14) * sizes).astype(np.float32)
    floats[:6] = np.inf, -np.inf, np.nan, largest, 1.25 * largest, -0.0
    others = np.roll(floats, 5)
    checks = []
    for relu in (False, True):
        word = ".relu" * relu
        low, high = (encoded(half, relu) for half in halves)
        unsigned = np.uint8 if bits == 4 else np.uint16
        found = (low | high << pitch).astype(unsigned)
        checks.append((case(f"cvt.rn.satfinite{word}.{pair}.f16x2 d, a;", kind, both), (found,)))
        brains = [encoded(each.view(ml_dtypes.bfloat16).astype(np.float32), relu) for each in halves]
        found = (brains[0] | brains[1] << pitch).astype(unsigned)
        checks.append((case(f"cvt.rn.satfinite{word}.{pair}.bf16x2 d, a;", kind, both), (found,)))
        low, high = encoded(others, relu), encoded(floats, relu)
        operands = floats.view(np.uint32), others.view(np.uint32)
        found = (low | high << pitch).astype(unsigned)
        checks.append((case(f"cvt.rn.satfinite{word}.{pair}.f32 d, a, b;", kind, *operands), (found,)))
        both_of_pair = patterns[: 1 << 2 * pitch].astype(unsigned)
        unpacked = decoded(both_of_pair, relu) | decoded(both_of_pair >> pitch, relu) << 16
        checks.append((case(f"cvt.rn{word}.f16x2.{pair} d, a;", "b32", both_of_pair), (unpacked,)))
    check(checks)


def test_pairs_of_scales():
    """To and from ue8m0: powers of two from 2**-127 on, and NaN. The sign is ignored."""
    words = np.array([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F800001,
                      0x7F000000, 0x7F000001, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF], np.uint32)  # fmt: skip
    down = np.array([0, 0, 0, 0, 0, 0, 1, 1, 127, 127, 254, 254, 254, 255, 255, 255])
    up = np.array([0, 0, 0, 0, 1, 1, 1, 2, 127, 128, 254, 255, 255, 255, 255, 255])
    words, others = np.concatenate([words, words | 1 << 31]), np.concatenate([words[::-1], words])
    checks = []
    for rounding, codes in (("rz", down), ("rp", up)):
        for sat in ("", ".satfinite"):
            limited = np.where(np.arange(16) < 14, np.minimum(codes, 254), 255) if sat else codes
            low, high = np.concatenate([limited[::-1], limited]), np.concatenate([limited, limited])
            text = f"cvt.{rounding}{sat}.ue8m0x2.f32 d, a, b;"
            checks.append((case(text, "b16", words, others), ((low | high << 8).astype(np.uint16),)))
    upper = np.array([0x40, 0x41, 0xBF81, 0x7F01, 0x7F80, 0x7FC0], np.uint32)
    codes = np.array([0, 1, 128, 254 + 1, 255, 255])
    for sat in ("", ".satfinite"):
        limited = np.where(np.arange(6) < 5, np.minimum(codes, 254), 255) if sat else codes
        text = f"cvt.rp{sat}.ue8m0x2.bf16x2 d, a;"
        both = upper | upper[::-1] << 16
        checks.append((case(text, "b16", both), ((limited | limited[::-1] << 8).astype(np.uint16),)))
    pairs = np.arange(256, dtype=np.uint16) | (np.uint16(255) - np.arange(256, dtype=np.uint16)) << 8
    numbers = np.ldexp(1.0, np.arange(255) - 127).astype(ml_dtypes.bfloat16).view(np.uint16)
    powers = np.append(numbers, 0x7FFF).astype(np.uint32)
    checks.append((case("cvt.rn.bf16x2.ue8m0x2 d, a;", "b32", pairs), (powers | powers[::-1] << 16,)))
    check(checks)


@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
def test_directed_rounding_of_integers_to_f64(source: str):
    """Against exact fractions: the largest double below, the smallest above, or the one nearer to zero."""
    bits = int(source[1:])
    (a,) = integers(bits, 1, random=300)
    near = [(1 << k) + step for k in range(50, bits) for step in (-1, 0, 1, 1 << max(0, k - 53), 3 << max(0, k - 54))]
    a = np.concatenate([a, np.array([n & ((1 << bits) - 1) for n in near], dtype=a.dtype)]) if near else a
    read = (lambda v: signed(v, bits)) if source[0] == "s" else (lambda v: v)

    def rounded(value: int, rounding: str) -> int:
        exact, found = read(value), float(read(value))
        towards = {"rp": math.inf, "rm": -math.inf, "rz": 0.0}[rounding]
        beyond = int(found) < exact if rounding == "rp" else int(found) > exact
        if rounding == "rz":
            beyond = abs(int(found)) > abs(exact)
        found = math.nextafter(found, towards) if beyond else found
        return int(np.float64(found).view(np.uint64))

    check(
        [
            (case(f"cvt.{r}.f64.{source} d, a;", "b64", a), (each(lambda v, r=r: rounded(v, r), 64, a),))
            for r in ("rz", "rm", "rp")
        ]
    )
