"""setp, set, selp and slct: every order of every type, with booleans, pairs and NaN."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from exact_floats import FORMATS, Format
from operands import UNSIGNED, Array, each, floats, integers, signed
from single_opcode import Check, case, check

Order = Callable[[int, int], bool]
BOOLEANS: dict[str, Callable[[Array, Array], Array]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
}
SIX = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}
UNSIGNED_ONLY = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
WIDTHS = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}
TRUE = {
    "u16": 0xFFFF,
    "s16": 0xFFFF,
    "u32": 0xFFFFFFFF,
    "s32": 0xFFFFFFFF,
    "f32": 0x3F800000,
    "f16": 0x3C00,
    "bf16": 0x3F80,
}


def integer_orders(kind: str) -> dict[str, Order]:
    bits = int(kind[1:])
    if kind[0] == "b":
        return {name: SIX[name] for name in ("eq", "ne")}
    if kind[0] == "u":
        return {**SIX, **UNSIGNED_ONLY}
    return {
        name: lambda p, q, compare=compare: compare(signed(p, bits), signed(q, bits)) for name, compare in SIX.items()
    }


def float_orders(form: Format, ftz: bool = False) -> dict[str, Order]:
    def number(pattern: int) -> float | int:
        value = form.flushed(pattern) if ftz else pattern
        return 0 if form.is_zero(value) else form.order(value)

    def ordered(compare: Order, unordered: bool) -> Order:
        return lambda p, q: unordered if form.is_nan(p) or form.is_nan(q) else compare(number(p), number(q))

    orders: dict[str, Order] = {name: ordered(compare, False) for name, compare in SIX.items()}
    orders |= {f"{name}u": ordered(compare, True) for name, compare in SIX.items()}
    orders["num"] = lambda p, q: not (form.is_nan(p) or form.is_nan(q))
    orders["nan"] = lambda p, q: form.is_nan(p) or form.is_nan(q)
    return orders


def booleans(a: Array) -> Array:
    return np.arange(a.size) % 3 == 0


def forms_of(kind: str, orders: dict[str, Order], a: Array, b: Array, ftz: str = "") -> list[Check]:
    """setp with p|q; every third order with a boolean; set to an integer and a float."""
    c = booleans(a)
    checks: list[Check] = []
    for index, (name, order) in enumerate(orders.items()):
        t = each(order, 1, a, b)
        checks.append((case(f"setp.{name}{ftz}.{kind} d|e, a, b;", "pred pred", a, b), (t, ~t)))
        word = list(BOOLEANS)[index % 3]
        combine = BOOLEANS[word]
        text = f"setp.{name}.{word}{ftz}.{kind} d|e, a, b, c;"
        checks.append((case(text, "pred pred", a, b, c), (combine(t, c), combine(~t, c))))
        text = f"setp.{name}.{word}{ftz}.{kind} d, a, b, !c;"
        checks.append((case(text, "pred", a, b, c), (combine(t, ~c),)))
        for target in ("u32", "f32") if index % 2 else ("s32",):
            expected = np.where(combine(t, c), np.uint32(TRUE[target]), np.uint32(0))
            checks.append((case(f"set.{name}.{word}{ftz}.{target}.{kind} d, a, b, c;", "b32", a, b, c), (expected,)))
            expected = np.where(t, np.uint32(TRUE[target]), np.uint32(0))
            checks.append((case(f"set.{name}{ftz}.{target}.{kind} d, a, b;", "b32", a, b), (expected,)))
    return checks


@pytest.mark.parametrize("kind", [f"{k}{bits}" for k in "bus" for bits in (16, 32, 64)])
def test_orders_of_integers(kind: str):
    a, b = integers(int(kind[1:]), 2, random=60)
    check(forms_of(kind, integer_orders(kind), a, b))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_orders_of_floats(kind: str):
    a, b = floats(kind, 2, edges=1200, random=60)
    checks = forms_of(kind, float_orders(FORMATS[kind]), a, b)
    if kind == "f32":
        checks += forms_of(kind, float_orders(FORMATS[kind], ftz=True), a, b, ftz=".ftz")
    check(checks)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_orders_of_halves(kind: str):
    a, b = floats(kind, 2, edges=1200, random=60)
    wide_a, wide_b = (o.astype(np.uint32) | np.roll(o, 5).astype(np.uint32) << np.uint32(16) for o in (a, b))
    c = booleans(a)
    checks: list[Check] = []
    for ftz in ("", ".ftz") if kind == "f16" else ("",):
        for index, (name, order) in enumerate(float_orders(FORMATS[kind], ftz=bool(ftz)).items()):
            t = each(order, 1, a, b)
            low, high = (
                each(order, 1, wide_a >> np.uint32(s) & np.uint32(0xFFFF), wide_b >> np.uint32(s) & np.uint32(0xFFFF))
                for s in (0, 16)
            )
            word = list(BOOLEANS)[index % 3]
            combine = BOOLEANS[word]
            checks.append((case(f"setp.{name}{ftz}.{kind} d, a, b;", "pred", a, b), (t,)))
            checks.append((case(f"setp.{name}{ftz}.{kind}x2 d|e, a, b;", "pred pred", wide_a, wide_b), (low, high)))
            text = f"setp.{name}.{word}{ftz}.{kind}x2 d|e, a, b, c;"
            checks.append((case(text, "pred pred", wide_a, wide_b, c), (combine(low, c), combine(high, c))))
            target = ("u16", "s16", "u32", "s32", kind)[index % 5]
            bits = WIDTHS.get(target) or int(target[1:])
            expected = np.where(t, TRUE[target], 0).astype(UNSIGNED[bits])
            checks.append((case(f"set.{name}{ftz}.{target}.{kind} d, a, b;", f"b{bits}", a, b), (expected,)))
            for target, one in (("u32", 0xFFFF), (f"{kind}x2", TRUE[kind])):
                expected = (np.where(low, one, 0) | np.where(high, one, 0) << 16).astype(np.uint32)
                text = f"set.{name}{ftz}.{target}.{kind}x2 d, a, b;"
                checks.append((case(text, "b32", wide_a, wide_b), (expected,)))
    for half in range(0, len(checks), 60):
        check(checks[half : half + 60])


def test_set_to_a_half():
    (a, b), (x, y) = floats("f32", 2), integers(32, 2)
    less = each(float_orders(FORMATS["f32"])["lt"], 1, a, b)
    below = each(integer_orders("s32")["lt"], 1, x, y)
    check(
        [
            (case("set.lt.f16.f32 d, a, b;", "b16", a, b), (np.where(less, TRUE["f16"], 0).astype(np.uint16),)),
            (case("set.lt.bf16.s32 d, a, b;", "b16", x, y), (np.where(below, TRUE["bf16"], 0).astype(np.uint16),)),
        ]
    )


def test_one_destination_may_be_the_sink():
    a, b = integers(32, 2)
    check(
        [
            (case("setp.lt.u32 _|d, a, b;", "pred", a, b), (a >= b,)),
            (case("setp.lt.u32 d|_, a, b;", "pred", a, b), (a < b,)),
        ]
    )


@pytest.mark.parametrize("kind", ["b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"])
def test_selection(kind: str):
    bits = int(kind[1:])
    a, b = floats(f"f{bits}", 2)
    p = booleans(a)
    (c,) = integers(32, 1, edges=14, random=a.size - 14)
    (x,) = floats("f32", 1, edges=34, random=a.size - 34)
    x = np.resize(x, a.size)
    f32 = FORMATS["f32"]
    not_negative = (c >> np.uint32(31)) == 0
    at_least_zero = each(lambda v: not f32.is_nan(v) and (f32.is_zero(v) or not f32.is_negative(v)), 1, x)
    flushed = each(lambda v: not f32.is_nan(v) and (not f32.is_negative(v) or f32.is_zero(f32.flushed(v))), 1, x)
    word = f"b{bits}"
    check(
        [
            (case(f"selp.{kind} d, a, b, c;", word, a, b, p), (np.where(p, a, b),)),
            (case(f"selp.{kind} d, a, b, !c;", word, a, b, p), (np.where(p, b, a),)),
            (case(f"slct.{kind}.s32 d, a, b, c;", word, a, b, c), (np.where(not_negative, a, b),)),
            (case(f"slct.{kind}.f32 d, a, b, c;", word, a, b, x), (np.where(at_least_zero, a, b),)),
            (case(f"slct.ftz.{kind}.f32 d, a, b, c;", word, a, b, x), (np.where(flushed, a, b),)),
        ]
    )
