"""Pairs of f32, and f32 with 16-bit floats: each element against exact numbers, with every rounding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exact_floats import F32, FORMATS, ROUNDINGS, each_float, nans_of
from operands import Array, floats
from single_opcode import Check, case, check, run_cases

ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "fma": 3}


def paired(low: Array, high: Array) -> Array:
    return low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)


def nans_of_pairs(bits: Array) -> Array:
    """Whether either element is NaN; the payload of a NaN is not part of the instruction's result."""
    low, high = bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)
    return np.asarray(nans_of(F32)(low) | nans_of(F32)(high))


@pytest.mark.parametrize("ftz", ["", ".ftz"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_pairs_of_f32(name: str, ftz: str):
    low = floats("f32", ARITHMETIC[name], edges=150, random=200)
    high = tuple(np.roll(each, 11) for each in reversed(low))
    names = ", ".join("abc"[: len(low)])
    cases, expected = [], []
    for mode in ROUNDINGS:

        def model(*patterns: int, mode: str = mode) -> int | None:
            if not ftz:
                return getattr(F32, name)(*patterns, mode)  # type: ignore[no-any-return]
            result = getattr(F32, name)(*(F32.flushed(p) for p in patterns), mode)
            return None if result is None else F32.flushed(result)

        cases.append(case(f"{name}.{mode}{ftz}.f32x2 d, {names};", "b64", *map(paired, low, high)))
        expected.append([each_float(F32, model, *low), each_float(F32, model, *high)])
    for (found,), halves in zip(run_cases(cases), expected):
        for shift, wanted in zip((0, 32), halves):
            got = (found >> np.uint64(shift)).astype(np.uint32)
            np.testing.assert_array_equal(got, np.where(nans_of(F32)(got) & nans_of(F32)(wanted), got, wanted))


def test_pairs_without_a_rounding_round_to_nearest():
    a, b = floats("f32", 2, edges=150, random=150)
    expected = paired(each_float(F32, F32.add, a, b), each_float(F32, F32.add, b, a))
    check([(case("add.f32x2 d, a, b;", "b64", paired(a, b), paired(b, a)), (expected,))], nans_of_pairs)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "fma"])
def test_f32_with_16_bits(name: str, kind: str):
    narrow = floats(kind, 2, edges=150, random=200)[: ARITHMETIC[name] - 1]
    wide = floats("f32", 1, edges=150, random=narrow[0].size)[0][: narrow[0].size]
    operands = (*(each[: wide.size] for each in narrow), wide)
    names = ", ".join("abc"[: len(operands)])
    converted = [as_f32(kind, each) for each in operands[:-1]]
    checks: list[Check] = []
    for mode in ROUNDINGS:

        def model(*patterns: int, mode: str = mode) -> int | None:
            return getattr(F32, name)(*patterns, mode)  # type: ignore[no-any-return]

        def saturated(*patterns: int, model: Callable[..., int | None] = model) -> int:
            return F32.saturated(model(*patterns))

        checks.append(
            (
                case(f"{name}.{mode}.f32.{kind} d, {names};", "b32", *operands),
                (each_float(F32, model, *converted, wide),),
            )
        )
        checks.append(
            (
                case(f"{name}.{mode}.sat.f32.{kind} d, {names};", "b32", *operands),
                (each_float(F32, saturated, *converted, wide),),
            )
        )
    check(checks, nans_of(F32))


def as_f32(kind: str, bits: Array) -> Array:
    """The same numbers as f32, exactly."""
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32).view(np.uint32)
    assert FORMATS[kind].fraction_bits == 7
    return bits.astype(np.uint32) << np.uint32(16)
