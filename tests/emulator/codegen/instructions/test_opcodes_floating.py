"""f32 and f64 arithmetic: every rounding, `.ftz` and `.sat` against exact numbers; approximations within their ulp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exact_floats import F32, F64, FORMATS, ROUNDINGS, Format, each_float, nans_of
from operands import each, floats
from single_opcode import Array, Check, case, check, run_case, run_cases

Operation = Callable[..., "int | None"]
ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "fma": 3}
ROUNDED = {**ARITHMETIC, "div": 2, "sqrt": 1, "rcp": 1}


def exactly(form: Format, name: str, mode: str) -> Operation:
    if name == "rcp":
        return lambda a: form.div(form.one, a, mode)
    operation = getattr(form, name)
    return lambda *patterns: operation(*patterns, mode)


def flushing(form: Format, operation: Operation) -> Operation:
    def model(*patterns: int) -> int | None:
        result = operation(*(form.flushed(p) for p in patterns))
        return None if result is None else form.flushed(result)

    return model


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_of_f32(name: str):
    operands = floats("f32", ROUNDED[name], edges=350, random=450)
    names = ", ".join("abc"[: len(operands)])
    checks: list[Check] = []
    for mode in ROUNDINGS:
        model = exactly(F32, name, mode)
        expected = each_float(F32, model, *operands)
        checks.append((case(f"{name}.{mode}.f32 d, {names};", "b32", *operands), (expected,)))
        expected = each_float(F32, flushing(F32, model), *operands)
        checks.append((case(f"{name}.{mode}.ftz.f32 d, {names};", "b32", *operands), (expected,)))
    check(checks, nans_of(F32))


@pytest.mark.parametrize("name", ARITHMETIC)
def test_saturation_of_f32(name: str):
    operands = floats("f32", ARITHMETIC[name])
    names = ", ".join("abc"[: len(operands)])
    checks: list[Check] = []
    for mode in ROUNDINGS:
        model = exactly(F32, name, mode)
        expected = each_float(F32, lambda *p, model=model: F32.saturated(model(*p)), *operands)
        checks.append((case(f"{name}.{mode}.sat.f32 d, {names};", "b32", *operands), (expected,)))
        flushed = flushing(F32, model)
        expected = each_float(F32, lambda *p, model=flushed: F32.saturated(model(*p)), *operands)
        checks.append((case(f"{name}.{mode}.ftz.sat.f32 d, {names};", "b32", *operands), (expected,)))
    check(checks)


@pytest.mark.parametrize("name", ROUNDED)
def test_rounding_of_f64(name: str):
    operands = floats("f64", ROUNDED[name], edges=300, random=300)
    names = ", ".join("abc"[: len(operands)])
    checks: list[Check] = []
    for mode in ROUNDINGS:
        expected = each_float(F64, exactly(F64, name, mode), *operands)
        checks.append((case(f"{name}.{mode}.f64 d, {names};", "b64", *operands), (expected,)))
        # The CPU's own rounding is back to nearest behind each of them.
        expected = each_float(F64, exactly(F64, "add", "rn"), operands[0], operands[-1])
        checks.append((case("add.f64 d, a, b;", "b64", operands[0], operands[-1]), (expected,)))
    check(checks, nans_of(F64))


def test_forms_without_a_rounding_round_to_nearest():
    a, b, c = floats("f32", 3)
    checks: list[Check] = [
        (case(f"{name}.f32 d, a, b;", "b32", a, b), (each_float(F32, exactly(F32, name, "rn"), a, b),))
        for name in ("add", "sub", "mul")
    ]
    checks.append((case("mad.rn.f32 d, a, b, c;", "b32", a, b, c), (each_float(F32, F32.fma, a, b, c),)))
    checks.append(
        (case("add.f32 d, a, 0f3F800001;", "b32", a), (each_float(F32, lambda p: F32.add(p, 0x3F800001), a),))
    )
    checks.append(
        (case("mul.f32 d, a, 0d3FE0000000000000;", "b32", a), (each_float(F32, lambda p: F32.mul(p, 0x3F000000), a),))
    )
    checks.append((case("add.f32 d, a, 1.5;", "b32", a), (each_float(F32, lambda p: F32.add(p, 0x3FC00000), a),)))
    check(checks, nans_of(F32))


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_minimum_and_maximum(kind: str):
    form, word = FORMATS[kind], "b" + kind[1:]
    a, b = floats(kind, 2, edges=1200)
    checks: list[Check] = []
    for name in ("min", "max"):
        model = lambda p, q, largest=name == "max": form.extreme(p, q, largest)  # noqa: E731
        checks.append((case(f"{name}.{kind} d, a, b;", word, a, b), (each_float(form, model, a, b),)))
        if kind == "f32":
            flushed = flushing(form, model)
            checks.append((case(f"{name}.ftz.f32 d, a, b;", word, a, b), (each_float(form, flushed, a, b),)))
            strict = lambda p, q, largest=name == "max": form.extreme(p, q, largest, nan=True)  # noqa: E731
            checks.append((case(f"{name}.NaN.f32 d, a, b;", word, a, b), (each_float(form, strict, a, b),)))
    check(checks, nans_of(form) if kind == "f64" else None)


def test_minimum_and_maximum_of_three():
    a, b, c = floats("f32", 3, edges=1000)

    def model(largest: bool, nan: bool) -> Operation:
        def extreme(p: int, q: int, r: int) -> int | None:
            first = F32.extreme(p, q, largest, nan)
            return F32.extreme(F32.sign_bit - 1 if first is None else first, r, largest, nan)

        return extreme

    check(
        [
            (
                case(f"{name}{nan}.f32 d, a, b, c;", "b32", a, b, c),
                (each_float(F32, model(name == "max", bool(nan)), a, b, c),),
            )
            for name in ("min", "max")
            for nan in ("", ".NaN")
        ]
    )


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_signs_and_tests_of_a_kind(kind: str):
    form, bits = FORMATS[kind], int(kind[1:])
    word = f"b{bits}"
    a, b = floats(kind, 2)
    tests: dict[str, Callable[[int], bool]] = {
        "finite": lambda p: not form.is_nan(p) and not form.is_infinite(p),
        "infinite": form.is_infinite,
        "number": lambda p: not form.is_nan(p),
        "notanumber": form.is_nan,
        "normal": lambda p: form.is_zero(p) or (bool(p & form.infinity) and (p & form.infinity) != form.infinity),
        "subnormal": lambda p: not form.is_zero(p) and form.flushed(p) != p,
    }
    copied = each(lambda p, q: q & ~form.sign_bit | p & form.sign_bit, bits, a, b)
    checks: list[Check] = [
        (case(f"neg.{kind} d, a;", word, a), (a ^ a.dtype.type(form.sign_bit),)),
        (case(f"abs.{kind} d, a;", word, a), (a & a.dtype.type(form.sign_bit - 1),)),
        (case(f"copysign.{kind} d, a, b;", word, a, b), (copied,)),
        *((case(f"testp.{name}.{kind} d, a;", "pred", a), (each(test, 1, a),)) for name, test in tests.items()),
    ]
    if kind == "f32":
        checks.append((case("neg.ftz.f32 d, a;", word, a), (each(lambda p: form.flushed(p) ^ form.sign_bit, 32, a),)))
        checks.append((case("abs.ftz.f32 d, a;", word, a), (each(lambda p: form.flushed(p) & ~form.sign_bit, 32, a),)))
    check(checks, nans_of(form))


# Approximations -------------------------------------------------------------------------------------------------------

HALF_ULP = 0.5 + 2**-20
"""All approximations are computed in double and rounded once; the promises of the ISA are at least twice as wide."""
APPROXIMATE: dict[str, Callable[[Array], Array]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
}
INPUTS: dict[str, tuple[float, float]] = {
    "ex2": (-151, 129),
    "sin": (-700, 700),
    "cos": (-700, 700),
    "tanh": (-12, 12),
}


def ulps_of_f32(exact: Array) -> Array:
    """The distance between floats around a number."""
    exponent = np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-126)))
    return np.exp2(exponent - 23)


def assert_within(found: Array, exact: Array, ulps: float, what: str) -> None:
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        special = ~np.isfinite(rounded) | (rounded == 0)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded), err_msg=what)
        same = (found.view(np.uint32) == rounded.view(np.uint32)) | np.isnan(rounded)
        distance = np.abs(found.astype(np.float64) - exact) / ulps_of_f32(np.where(special, 1.0, exact))
    wrong = np.where(special, ~same, ~(distance <= ulps))
    assert not wrong.any(), f"{what}: {found[wrong][0]} instead of {exact[wrong][0]}"


def test_approximations_are_correctly_rounded():
    rng = np.random.default_rng(3)
    (patterns,) = floats("f32", 1, random=600)
    cases, references = [], []
    with np.errstate(all="ignore"):
        for name, function in APPROXIMATE.items():
            ranged = rng.uniform(*INPUTS.get(name, (0, 10)), 800).astype(np.float32)
            x = np.concatenate([patterns.view(np.float32), ranged])
            flushed = each(F32.flushed, 32, x.view(np.uint32)).view(np.float32)
            exact = function(x.astype(np.float64))
            exact_of_flushed = function(flushed.astype(np.float64))
            cases.append(case(f"{name}.approx.f32 d, a;", "b32", x.view(np.uint32)))
            references.append(exact)
            if name != "tanh":
                tiny = (np.abs(exact_of_flushed) < 2.0**-126) & np.isfinite(exact_of_flushed)
                cases.append(case(f"{name}.approx.ftz.f32 d, a;", "b32", x.view(np.uint32)))
                references.append(np.where(tiny, np.copysign(0.0, exact_of_flushed), exact_of_flushed))
    for single, (found,), exact in zip(cases, run_cases(cases), references):
        assert_within(found.view(np.float32), exact, HALF_ULP, single.text)


def test_an_approximation_that_is_off_is_noticed():
    exact = np.array([1.0, 3.0])
    with pytest.raises(AssertionError, match="a form"):
        assert_within(
            np.array([1.0, np.nextafter(np.float32(3), np.float32(4))], np.float32), exact, HALF_ULP, "a form"
        )


def test_approximate_division():
    """Correctly rounded; but a divisor beyond 2**126 has the reciprocal 0 in `.approx`."""
    a, b = floats("f32", 2, edges=1000)
    huge = F32.rounded(1, 126)

    def approximate(p: int, q: int) -> int | None:
        if not F32.is_nan(q) and q & ~F32.sign_bit > huge:
            return F32.mul(p, F32.zero(F32.is_negative(q)))
        return F32.div(p, q)

    checks: list[Check] = []
    for word, model in (("approx", approximate), ("full", F32.div)):
        checks.append((case(f"div.{word}.f32 d, a, b;", "b32", a, b), (each_float(F32, model, a, b),)))
        flushed = each_float(F32, flushing(F32, model), a, b)
        checks.append((case(f"div.{word}.ftz.f32 d, a, b;", "b32", a, b), (flushed,)))
    check(checks, nans_of(F32))


def test_reciprocals_of_the_upper_word():
    (a,) = floats("f64", 1, random=300)
    upper = 0xFFFFFFFF << 32

    def model(function: Callable[[int], int | None]) -> Operation:
        def of_upper_word(pattern: int) -> int:
            result = function(F64.flushed(pattern & upper))
            return 0x7FFFFFFF << 32 if result is None else F64.flushed(result) & upper

        return of_upper_word

    for name, function in (("rcp", lambda p: F64.div(F64.one, p)), ("rsqrt", exact_rsqrt)):
        found = run_case(f"{name}.approx.ftz.f64 d, a;", "b64", a)
        expected = each_float(F64, model(function), a)
        assert (found & np.uint64(0xFFFFFFFF) == 0).all()
        # The last bit of the upper word may differ: the root is rounded once more than the exact one.
        np.testing.assert_allclose(
            (found >> np.uint64(32)).astype(np.int64), (expected >> np.uint64(32)).astype(np.int64), atol=1
        )
    exact = each_float(F64, exact_rsqrt, a).view(np.float64)
    np.testing.assert_allclose(run_case("rsqrt.approx.f64 d, a;", "b64", a).view(np.float64), exact, rtol=2**-51)


def exact_rsqrt(pattern: int) -> int | None:
    root = F64.sqrt(pattern)
    return None if root is None else F64.div(F64.one, root)
