"""Video instructions and cvt.pack, against the pseudo-code of the PTX ISA (9.7.18, 9.7.9.22) in Python's integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from operands import each, integers, signed
from single_opcode import Check, case, check, run_body

from harness.support.errors import UnsupportedInstruction

WORDS = ("u32", "s32")
COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
FIRST_STAGE = {
    "vadd": lambda a, b: a + b,
    "vsub": lambda a, b: a - b,
    "vabsdiff": lambda a, b: abs(a - b),
    "vmin": min,
    "vmax": max,
    "vavrg": lambda a, b: (a + b + 1 if a + b >= 0 else a + b) >> 1,
}
SECOND_STAGE = {"add": lambda t, c: t + c, "min": min, "max": max}


def part(value: int, selector: str, kind: str) -> int:
    """partSelectSignExtend of the ISA."""
    bits = {"": 32, "b": 8, "h": 16}[selector[:1]]
    field = value >> bits * int(selector[1:] or 0) & (1 << bits) - 1
    return signed(field, bits) if kind[0] == "s" else field


def limited(value: int, bits: int, kind: str) -> int:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
    return max(low, min(high, value))


def merged(selector: str, value: int, c: int) -> int:
    bits = {"b": 8, "h": 16}[selector[0]]
    start = bits * int(selector[1])
    mask = (1 << bits) - 1 << start
    return c & ~mask | value << start & mask


def dotted(register: str, selector: str) -> str:
    return f"{register}.{selector}" if selector else register


def scalar(
    form: str, first: object, kinds: tuple[str, str, str], selectors: tuple[str, str, str], ending: str
) -> Check:
    """A case of one scalar instruction. `ending` is a second operation, `merge`, or empty."""
    a, b, c = integers(32, 3, edges=80, random=60)
    target, x_kind, y_kind = kinds
    d_selector, x_selector, y_selector = selectors
    saturates = ".sat" in form
    width = 32 if ending != "merge" else 8 if d_selector[0] == "b" else 16

    def model(p: int, q: int, r: int) -> int:
        t = first(part(p, x_selector, x_kind), part(q, y_selector, y_kind))  # type: ignore[operator]
        if saturates:
            t = limited(t, width, target)
        if ending == "merge":
            return merged(d_selector, t, r)
        return SECOND_STAGE[ending](t, part(r, "", target)) if ending else t

    second = f".{ending}" if ending not in ("", "merge") else ""
    operands = [dotted("d", d_selector if ending == "merge" else ""), dotted("a", x_selector), dotted("b", y_selector)]
    text = f"{form}{second} {', '.join(operands + ['c'] * bool(ending))};"
    return case(text, "b32", a, b, c), (each(model, 32, a, b, c),)


SELECTORS = (("b0", "", ""), ("b3", "b2", "h1"), ("h1", "b1", "b3"), ("h0", "h0", "h1"))
ENDINGS = ("", "add", "min", "max", "merge")


@pytest.mark.parametrize("opcode", ["vadd", "vsub", "vabsdiff", "vmin", "vmax"])
def test_scalar_arithmetic(opcode: str):
    checks = []
    for number, kinds in enumerate(itertools.product(WORDS, repeat=3)):
        for saturation, (place, ending) in itertools.product(("", ".sat"), enumerate(ENDINGS)):
            form = f"{opcode}.{'.'.join(kinds)}{saturation}"
            checks.append(scalar(form, FIRST_STAGE[opcode], kinds, SELECTORS[(number + place) % 4], ending))
    check(checks)


def test_scalar_comparison():
    checks = []
    for number, (kinds, word) in enumerate(itertools.product(itertools.product(WORDS, repeat=2), COMPARISONS)):
        form, place = f"vset.{'.'.join(kinds)}.{word}", SELECTORS[number % 4]
        checks.append(scalar(form, COMPARISONS[word], ("u32", *kinds), place, ENDINGS[number % 5]))
    check(checks)


def shifted(opcode: str, mode: str, value: int, amount: int) -> int:
    amount = min(amount, 32) if mode == "clamp" else amount & 31
    return value << amount if opcode == "vshl" else value >> amount


@pytest.mark.parametrize("opcode", ["vshl", "vshr"])
def test_scalar_shifts(opcode: str):
    checks = []
    kinds_and_modes = itertools.product(itertools.product(WORDS, repeat=2), ("clamp", "wrap"), ("", ".sat"))
    for number, ((target, source), mode, saturation) in enumerate(kinds_and_modes):
        first = lambda p, q, mode=mode: shifted(opcode, mode, p, q)  # noqa: E731
        for place in range(2):
            ending = ENDINGS[(number + 2 * place) % 5]
            form = f"{opcode}.{target}.{source}.u32{saturation}.{mode}"
            checks.append(scalar(form, first, (target, source, "u32"), SELECTORS[(number + place) % 4], ending))
    check(checks)


def test_multiply_and_add():
    """`vmad`: its product or its addend negated, one more, shifted down, clamped by the sign of the final result."""
    a, b, c = integers(32, 3, edges=80, random=60)
    checks: list[Check] = []
    negations = ("", "a", "b", "ab", "c", "po")
    forms = itertools.product(itertools.product(WORDS, repeat=2), negations, ("", "shr7", "shr15"), (False, True))
    for number, ((x_kind, y_kind), negated, scale, saturates) in enumerate(forms):
        _, x_selector, y_selector = SELECTORS[number % 4]
        negative_product = negated in ("a", "b")
        is_signed = "s32" in (x_kind, y_kind) or negative_product or negated == "c"

        def model(p: int, q: int, r: int) -> int:
            product = part(p, x_selector, x_kind) * part(q, y_selector, y_kind)  # noqa: B023
            addend = part(r, "", "s32" if is_signed else "u32")  # noqa: B023
            total = (-product if negative_product else product) + (-addend if negated == "c" else addend)  # noqa: B023
            total = total + (negated == "po") >> int(scale[3:] or 0)  # noqa: B023
            return limited(total, 32, "s32" if is_signed else "u32") if saturates else total  # noqa: B023

        words = [
            "vmad",
            "u32",
            x_kind,
            y_kind,
            *["po"] * (negated == "po"),
            *["sat"] * saturates,
            *[scale] * bool(scale),
        ]
        signs = ["-" * (name in negated and negated != "po") for name in "abc"]
        operands = f"{signs[0]}{dotted('a', x_selector)}, {signs[1]}{dotted('b', y_selector)}, {signs[2]}c"
        expected = each(model, 32, a, b, c)
        checks.append((case(f"{'.'.join(words)} d, {operands};", "b32", a, b, c), (expected,)))
    check(checks)


def elements(a: int, b: int, selector: str, kind: str, count: int) -> list[int]:
    """extractAndSignExt of the ISA, lowest first."""
    bits = 32 // count
    fields = [(b << 32 | a) >> bits * int(digit) & (1 << bits) - 1 for digit in reversed(selector[1:])]
    return [signed(f, bits) if kind[0] == "s" else f for f in fields]


SIMD_SELECTORS = {
    2: (("", "h10", "h32"), ("h0", "h23", "h01"), ("h1", "h00", "h31"), ("h10", "h13", "h22")),
    4: (("", "b3210", "b7654"), ("b20", "b0475", "b7132"), ("b3", "b5555", "b0123"), ("b321", "b6420", "b7531")),
}


def simd(form: str, count: int, first: object, kinds: tuple[str, str, str], place: int, adds: bool) -> Check:
    a, b, c = integers(32, 3, edges=60, random=60)
    mask, x_selector, y_selector = SIMD_SELECTORS[count][place]
    bits, enabled = 32 // count, mask[1:] or "3210"

    def model(p: int, q: int, r: int) -> int:
        result, total = 0, r
        pairs = zip(elements(p, q, x_selector, kinds[1], count), elements(p, q, y_selector, kinds[2], count))
        for index, (x, y) in enumerate(pairs):
            t = first(x, y)  # type: ignore[operator]
            t = limited(t, bits, kinds[0]) if ".sat" in form else t
            chosen = t if str(index) in enabled else r >> bits * index
            result |= (chosen & (1 << bits) - 1) << bits * index
            total += t if str(index) in enabled else 0
        return total if adds else result

    named = [dotted("d", mask), *((f"a.{x_selector}", f"b.{y_selector}") if mask else ("a", "b")), "c"]
    return case(f"{form}{'.add' * adds} {', '.join(named)};", "b32", a, b, c), (each(model, 32, a, b, c),)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("opcode", ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"])
def test_arithmetic_on_halfwords_and_bytes(opcode: str, count: int):
    checks = []
    for number, kinds in enumerate(itertools.product(WORDS, repeat=3)):
        for place, ending in enumerate(("", ".sat", ".add")):
            form = f"{opcode}{count}.{'.'.join(kinds)}{ending.replace('.add', '')}"
            checks.append(simd(form, count, FIRST_STAGE[opcode], kinds, (number + place) % 4, ending == ".add"))
    check(checks)


@pytest.mark.parametrize("count", [2, 4])
def test_comparison_of_halfwords_and_bytes(count: int):
    checks = []
    for number, (kinds, word) in enumerate(itertools.product(itertools.product(WORDS, repeat=2), COMPARISONS)):
        form = f"vset{count}.{'.'.join(kinds)}.{word}"
        checks.append(simd(form, count, COMPARISONS[word], ("u32", *kinds), number % 4, number % 3 == 2))
    check(checks)


def test_packing_with_saturation():
    a, b, c = integers(32, 3, edges=150)
    small = np.concatenate([np.arange(-20, 20), np.arange(-140, 140, 7)]).astype(np.int32).view(np.uint32)
    a, b, c = (np.concatenate([x, np.roll(small, turn)]) for turn, x in enumerate((a, b, c)))
    checks: list[Check] = []
    for kind in ("u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16"):
        bits = int(kind[1:])
        mask = (1 << bits) - 1

        def model(p: int, q: int, r: int) -> int:
            high, low = (limited(signed(v, 32), bits, kind) & mask for v in (p, q))  # noqa: B023
            return high << bits | low | r << 2 * bits  # noqa: B023

        text = f"cvt.pack.sat.{kind}.s32{'' if bits == 16 else '.b32'} d, a, b{'' if bits == 16 else ', c'};"
        checks.append((case(text, "b32", a, b, c), (each(model, 32, a, b, c),)))
    check(checks)


@pytest.mark.parametrize(
    "text",
    [
        "vadd.s32.s32.s32 r1.b4, r2, r3, r4;",
        "vadd.s32.s32.s32 r1.h10, r2, r3, r4;",
        "vadd.s32.s32.s32.add r1.b0, r2, r3, r4;",
        "vadd.s32.s32.s32 r1, r2, r3, r4;",
        "vadd.s32.s32.s32.add r1, r2, r3;",
        "vadd.s32.s32 r1, r2, r3;",
        "vadd.s16.s32.s32 r1, r2, r3;",
        "vset.u32.u32 r1, r2, r3;",
        "vset.u32.u32.lt.sat r1, r2, r3;",
        "vshl.u32.u32.u32 r1, r2, r3;",
        "vshr.u32.u32.s32.wrap r1, r2, r3;",
        "vmad.s32.s32.s32.po r1, -r2, r3, r4;",
        "vmad.s32.s32.s32 r1, -r2, r3, -r4;",
        "vmad.s32.s32.s32 r1, r2, r3, r4.b0;",
        "vadd2.s32.s32.s32.sat.add r1, r2, r3, r4;",
        "vadd2.s32.s32.s32 r1, r2.h40, r3, r4;",
        "vadd2.s32.s32.s32 r1.h01, r2, r3, r4;",
        "vadd4.s32.s32.s32 r1.b0123, r2, r3, r4;",
        "vavrg4.s32.s32.s32 r1, r2.b8210, r3, r4;",
        "vset4.u32.u32 r1, r2, r3, r4;",
        "cvt.pack.s16.s32 r1, r2, r3;",
        "cvt.pack.sat.u8.s32 r1, r2, r3;",
        "cvt.pack.sat.u16.s32.b32 r1, r2, r3, r4;",
        "cvt.pack.sat.u8.u32.b32 r1, r2, r3, r4;",
        "add.u32 r1, r2.b0, r3;",
        "add.s32 r1, -r2, r3;",
    ],
)
def test_forms_that_do_not_exist_are_refused_by_name(text: str):
    with pytest.raises(UnsupportedInstruction, match=f"'{text.split()[0]}' at PTX line"):
        run_body(text, {})
