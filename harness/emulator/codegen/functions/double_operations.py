"""Emits the functions of `abi/doubles.py`, which compute with the bits of doubles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.emulator.abi import doubles

_BINARY = {doubles.add: "fadd", doubles.multiply: "fmul", doubles.divide: "fdiv"}
_INTRINSICS = {doubles.floor: "llvm.floor.f64", doubles.magnitude: "llvm.fabs.f64"}
DECLARATIONS = "".join(f"declare double @{name}(double)\n" for name in _INTRINSICS.values())
_CONVERSIONS = (doubles.from_float, doubles.to_float, doubles.from_integer, doubles.to_integer)
FUNCTIONS: frozenset[Any] = frozenset({*_BINARY, *_INTRINSICS, *_CONVERSIONS, doubles.less})
"""The functions that `emit` knows."""


def emit(function: Any, values: Sequence[str], op: Callable[[str], str]) -> tuple[str, str]:
    """Emit a call with `op`, which returns the name of a result. Returns the result and its type, `i64` or `i1`."""

    def double(value: str) -> str:
        return op(f"bitcast i64 {value} to double")

    def bits(value: str) -> tuple[str, str]:
        return op(f"bitcast double {value} to i64"), "i64"

    if function is doubles.from_integer:
        return bits(op(f"sitofp i64 {values[0]} to double"))
    if function is doubles.from_float:
        narrow = op(f"bitcast i32 {op(f'trunc i64 {values[0]} to i32')} to float")
        return bits(op(f"fpext float {narrow} to double"))
    operands = [double(value) for value in values]
    if function in _BINARY:
        return bits(op(f"{_BINARY[function]} double {operands[0]}, {operands[1]}"))
    if function in _INTRINSICS:
        return bits(op(f"call double @{_INTRINSICS[function]}(double {operands[0]})"))
    if function is doubles.less:
        return op(f"fcmp olt double {operands[0]}, {operands[1]}"), "i1"
    if function is doubles.to_integer:
        return op(f"fptosi double {operands[0]} to i64"), "i64"
    assert function is doubles.to_float
    narrow = op(f"bitcast float {op(f'fptrunc double {operands[0]} to float')} to i32")
    return op(f"zext i32 {narrow} to i64"), "i64"
