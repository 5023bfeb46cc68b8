"""f16, bf16 and their pairs: rounded once from the exact result, NaN in the hardware's one pattern."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exact_floats import FORMATS, Format, each_float, through_pairs
from operands import Array, each, floats
from single_opcode import Check, case, check, run_cases

Operation = Callable[..., "int | None"]
ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "fma": 3}
KINDS = ("f16", "bf16")
NAN = 0x7FFF


def pairs_of(operands: tuple[Array, ...]) -> tuple[Array, ...]:
    """Each pattern with another one in its upper half."""
    return tuple(o.astype(np.uint32) | np.roll(o, 7).astype(np.uint32) << np.uint32(16) for o in operands)


def settled(model: Operation) -> Callable[..., int]:
    def pattern(*patterns: int) -> int:
        result = model(*patterns)
        return NAN if result is None else result

    return pattern


def flushing(form: Format, model: Operation) -> Operation:
    return lambda *patterns: form.flushed(settled(model)(*(form.flushed(p) for p in patterns)))


def both_forms(name: str, kind: str, model: Operation, *operands: Array) -> list[Check]:
    """The scalar form, and the packed one on pairs."""
    names = ", ".join("abc"[: len(operands)])
    wide = pairs_of(operands)
    return [
        (case(f"{name}.{kind} d, {names};", "b16", *operands), (each(settled(model), 16, *operands),)),
        (case(f"{name}.{kind}x2 d, {names};", "b32", *wide), (each(through_pairs(settled(model)), 32, *wide),)),
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name: str, kind: str):
    form = FORMATS[kind]
    operands = floats(kind, ARITHMETIC[name], edges=500, random=500)
    model = getattr(form, name)
    checks = both_forms(f"{name}.rn", kind, model, *operands)
    if name != "fma":
        checks += both_forms(name, kind, model, *operands)
    if kind == "f16":
        checks += both_forms(f"{name}.rn.sat", kind, lambda *p: form.saturated(model(*p)), *operands)
        checks += both_forms(f"{name}.rn.ftz", kind, flushing(form, model), *operands)
    if name == "fma":

        def without_negatives(*patterns: int) -> int | None:
            result = model(*patterns)
            return 0 if result is not None and form.is_negative(result) else result

        checks += both_forms("fma.rn.relu", kind, without_negatives, *operands)
    check(checks)


def test_a_sum_just_beyond_a_tie():
    """1 + a * b, where the product exceeds half an ulp by less than a float next to 1 can tell."""
    pairs = [(a, b) for a in range(1024, 2048) for b in range(a, 2048) if 1 << 21 < a * b < (1 << 21) + 512]
    assert len(pairs) > 20
    a, b = (np.array(column, dtype=np.uint16) for column in zip(*pairs))
    # a * 2**-16 and b * 2**-16, so that their product is a little more than 2**-11.
    a, b = a - np.uint16(1024) + np.uint16(0x2400), b - np.uint16(1024) + np.uint16(0x2400)
    one, minus = np.full_like(a, 0x3C00), np.full_like(a, 0xBC00)
    form = FORMATS["f16"]
    expected = each(settled(form.fma), 16, a, b, one)
    assert (expected == 0x3C01).all()
    checks = both_forms("fma.rn", "f16", form.fma, a, b, one)
    check(checks + both_forms("fma.rn", "f16", form.fma, a, b ^ np.uint16(0x8000), minus))


@pytest.mark.parametrize("kind", KINDS)
def test_minimum_and_maximum(kind: str):
    form = FORMATS[kind]
    a, b = floats(kind, 2, edges=1200)
    checks: list[Check] = []
    for name in ("min", "max"):
        model = lambda p, q, largest=name == "max": form.extreme(p, q, largest)  # noqa: E731
        strict = lambda p, q, largest=name == "max": form.extreme(p, q, largest, nan=True)  # noqa: E731
        checks += both_forms(name, kind, model, a, b) + both_forms(f"{name}.NaN", kind, strict, a, b)
        if kind == "f16":
            checks += both_forms(f"{name}.ftz", kind, flushing(form, model), a, b)
    check(checks)


@pytest.mark.parametrize("kind", KINDS)
def test_signs(kind: str):
    form = FORMATS[kind]
    (a,) = floats(kind, 1)
    negated: Operation = lambda p: None if form.is_nan(p) else p ^ form.sign_bit  # noqa: E731
    absolute: Operation = lambda p: None if form.is_nan(p) else p & ~form.sign_bit  # noqa: E731
    checks = both_forms("neg", kind, negated, a) + both_forms("abs", kind, absolute, a)
    if kind == "f16":
        checks += both_forms("neg.ftz", kind, lambda p: negated(form.flushed(p)), a)
        checks += both_forms("abs.ftz", kind, lambda p: absolute(form.flushed(p)), a)
    check(checks)


def numbers(kind: str, patterns: Array) -> Array:
    """Patterns as float64, without a library that knows bf16."""
    form = FORMATS[kind]
    special = {form.infinity: np.inf, form.infinite(True): -np.inf}
    values = [
        special.get(p, np.nan) if p & form.infinity == form.infinity else form.integer(p) * 2.0**form.unit
        for p in patterns.tolist()
    ]
    return np.where(patterns == form.sign_bit, -0.0, values)


@pytest.mark.parametrize("kind", KINDS)
def test_transcendental_functions_on_every_pattern(kind: str):
    """All 65536 operands: within half an ulp of the format and a little for the float in between."""
    form = FORMATS[kind]
    a = np.arange(1 << 16, dtype=np.uint16)
    ftz = ".ftz" if kind == "bf16" else ""
    both = a.astype(np.uint32) | (a.astype(np.uint32) << np.uint32(16))
    cases = [
        case(f"ex2.approx{ftz}.{kind} d, a;", "b16", a),
        case(f"ex2.approx{ftz}.{kind}x2 d, a;", "b32", both),
        case(f"tanh.approx.{kind} d, a;", "b16", a),
        case(f"tanh.approx.{kind}x2 d, a;", "b32", both),
    ]
    (ex2,), (ex2_pairs,), (tanh,), (tanh_pairs,) = run_cases(cases)
    for single, paired in ((ex2, ex2_pairs), (tanh, tanh_pairs)):
        np.testing.assert_array_equal(paired, single.astype(np.uint32) | single.astype(np.uint32) << np.uint32(16))
    x = numbers(kind, a)
    with np.errstate(all="ignore"):
        for found, exact, flushed in ((ex2, np.exp2(x), kind == "bf16"), (tanh, np.tanh(x), False)):
            exact = np.where(flushed & (np.abs(exact) < 2.0 ** (form.unit + form.fraction_bits)), 0.0, exact)
            got = numbers(kind, found)
            np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
            assert (found[np.isnan(exact)] == NAN).all()
            largest = numbers(kind, np.array([form.infinity - 1], dtype=np.uint16))[0]
            ulp = np.exp2(np.maximum(np.floor(np.log2(np.abs(exact))) - form.fraction_bits, form.unit))
            overflows = np.abs(exact) >= largest + largest * 2.0 ** -(form.fraction_bits + 2)
            fine = np.where(overflows, np.isinf(got), np.abs(got - exact) <= (0.5 + 2**-10) * ulp)
            assert (fine | np.isnan(exact)).all(), (hex(a[~fine][0]), hex(found[~fine][0]))
            assert (np.signbit(got) == np.signbit(exact))[~np.isnan(exact)].all()


def test_the_model_rounds_as_numpy_does():
    """The exact model itself, where NumPy has the format."""
    a, b = floats("f16", 2, edges=600)
    with np.errstate(all="ignore"):
        total = (a.view(np.float16) + b.view(np.float16)).view(np.uint16)
        product = (a.view(np.float16) * b.view(np.float16)).view(np.uint16)
    for form_result, numpy_result in (
        (each_float(FORMATS["f16"], FORMATS["f16"].add, a, b), total),
        (each_float(FORMATS["f16"], FORMATS["f16"].mul, a, b), product),
    ):
        number = form_result != NAN
        np.testing.assert_array_equal(form_result[number], numpy_result[number])
        assert np.isnan(numpy_result[~number].view(np.float16)).all()
