"""Functions in the runtime's subset of Python: native code does what Python does, and what is not in it is refused."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.emulator.abi import doubles, raw_memory
from harness.emulator.abi.raw_memory import (
    call_host,
    fill_ones,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
)
from harness.emulator.codegen.functions.python_subset import translate
from harness.emulator.native.llvm_compiler import initialize, optimize_calls, target_machine

LIMIT = 1000


def arithmetic(a: int, b: int, shift: int) -> int:
    c, d = a + 3 * b, a - b
    c ^= d & ~b | 5
    c <<= shift
    return (c >> 2) + -d + abs(a) + min(a, b, 7) - max(a, b) + +a


def division(a: int, b: int, shift: int) -> int:
    by = b if b else 3
    return a // by * 1_000_003 + a % by + a // 8 * 17 + a % 8 + a // 5 + a % -5


def comparisons(a: int, b: int, shift: int) -> int:
    each = (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a > b) + 32 * (a >= b)
    return each + 64 * (a < b <= shift != 3)


def junctions(a: int, b: int, shift: int) -> int:
    first = a or b
    second = a and b and shift
    third = not a or (b > shift and bool(shift))
    return 3 * first + 5 * second + 7 * third + (a if b else shift)


def counting(a: int, b: int, shift: int) -> int:
    total = 0
    for index in range(a % 7, b % 29, 1 + shift % 3):
        if index == 11:
            continue
        total = 31 * total + index
        index += 100
        if total > 1_000_000:
            break
    for index in range(shift, -3, -2):
        total += index * index
    while total > LIMIT:
        total //= 3
        if total % 5 == 2:
            break
    return total + shift


def early(a: int, b: int, shift: int) -> int:
    if a < 0:
        return helper(b, shift)
    elif a == 0:
        pass
    else:
        value: int = helper(a, shift)
        return value
    return -1


def helper(a: int, b: int) -> int:
    return a * 2 - b


def memory(a: int, b: int, shift: int) -> int:
    fill_ones(BUFFER + 1, 13)
    store8(BUFFER, a)
    store16(BUFFER + 2, b)
    store32(BUFFER + 8, a * b)
    raw_memory.store64(BUFFER + 16, a - b)
    call_host(DOUBLE, BUFFER + 16)
    return load8(BUFFER) + load16(BUFFER + 2) + load16(BUFFER + 4) + load32(BUFFER + 8) + load64(BUFFER + 16)


QUARTER = doubles.bits_of(-0.25)


def floats(a: int, b: int, shift: int) -> int:
    x = doubles.divide(doubles.from_integer(a), doubles.from_integer(b if b else 3))
    y = doubles.add(doubles.multiply(x, doubles.from_integer(shift)), QUARTER)
    whole = doubles.to_integer(doubles.floor(y)) + 3 * doubles.to_float(y) + 7 * doubles.less(x, y)
    return whole + (doubles.from_float(doubles.to_float(doubles.magnitude(x))) >> 8) + (x >> 3)


_words = np.zeros(8, np.int64)
BUFFER = _words.ctypes.data


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _double(address: int) -> None:
    raw_memory.store64(address, 2 * load64(address))


DOUBLE = ctypes.cast(_double, ctypes.c_void_p).value

SUBSET = (arithmetic, division, comparisons, junctions, counting, early, memory, floats)
NUMBERS = st.integers(-5, 5) | st.integers(-(2**31), 2**31)


@pytest.fixture(scope="module")
def native() -> dict[str, Any]:
    """The functions as native code, of the same names."""
    initialize()
    machine = target_machine()
    module = llvm.parse_assembly(translate({f"test.{function.__name__}": function for function in SUBSET}))
    module.verify()
    optimize_calls(module, machine)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)
    found: dict[str, Any] = {f.__name__: kind(engine.get_function_address(f"test.{f.__name__}")) for f in SUBSET}
    found["engine"] = engine  # which has to live as long as they do
    return found


@pytest.mark.parametrize("function", SUBSET, ids=lambda function: function.__name__)
@given(a=NUMBERS, b=NUMBERS, shift=st.integers(0, 20))
@example(a=0, b=0, shift=0)
@example(a=-7, b=2, shift=3)
def test_native_code_does_what_python_does(
    native: dict[str, Any],
    function: Callable[[int, int, int], int],
    a: int,
    b: int,
    shift: int,
) -> None:
    assert native[function.__name__](a, b, shift) == function(a, b, shift)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("return a / 2", "Div"),
        ("return a ** 2", "Pow"),
        ("return 1.5", "no integer"),
        ("return [a][0]", "Subscript"),
        ("return nowhere", "no value here"),
        ("return len(a)", "a call of len"),
        ("return max(a, key=a)", "an argument by name"),
        ("a, b = a", "an assignment"),
        ("x: int\n    return a", "a declaration"),
        ("for i in a: pass", "a loop over"),
        ("while a: break\n    else: a = 1", "else of a loop"),
        ("with a: pass", "With"),
    ],
)
def test_what_is_not_in_the_subset_is_refused_at_its_line(
    body: str, what: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("subset")
    (folder / "outside_the_subset.py").write_text(f"def function(a):\n    {body}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "outside_the_subset", raising=False)
    module = importlib.import_module("outside_the_subset")
    with pytest.raises(TypeError, match=rf"outside_the_subset, line \d: .*{what}"):
        translate({"function": module.function})
