"""mma of f64 (PTX ISA 9.7.14.5.14): for each element of D a chain of fused multiply-adds, the lowest K first.

That each step rounds as `fma.f64` does is documented. That they are in this order is not; an A100 has it so (Fasi and
others, "Numerical behavior of NVIDIA tensor cores", 2021), and no GPU was asked here.
"""

from __future__ import annotations

from harness.emulator.codegen.fragments import Fragment, mma_layout
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.vocabulary import vector
from harness.emulator.codegen.warp import check_whole_warp
from harness.ptx.instructions import Instruction, Operand, Vector

DOUBLE_SHAPES = ((8, 4), (16, 4), (16, 8), (16, 16))
"""Rows and K."""
VD = vector("double")


def multiply_doubles(lanes: Lanes, instruction: Instruction, rows: int, depth: int, rounding: str) -> None:
    """mma.sync.aligned.m*n8k*.row.col.f64.f64.f64.f64{.rounding} d, a, b, c."""
    layout = mma_layout(depth, 32, 32, rows)
    d, a, b, c = instruction.operands
    check_whole_warp(lanes, instruction)
    left, right = _values(lanes, instruction, a, layout.a), _values(lanes, instruction, b, layout.b)
    results = []
    for register, total in enumerate(_values(lanes, instruction, c, layout.c)):
        elements = [layout.c.element(register, lane) for lane in range(32)]
        for k in range(depth):
            x = _spread(lanes, left, layout.a, [(row, k) for row, _ in elements])
            y = _spread(lanes, right, layout.b, [(k, column) for _, column in elements])
            if rounding == "rn":
                total = lanes.intrinsic("llvm.fma.v32f64", VD, (VD, x), (VD, y), (VD, total))
            else:
                total = lanes.prelude(f"fma_double_{rounding}", x, y, total)
        results.append(total)
    for target, value in zip(_registers(instruction, d, layout.c), results, strict=True):
        lanes.put(target, value, "double")


def _registers(instruction: Instruction, operand: Operand, fragment: Fragment) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector) or len(operand.items) != fragment.registers:
        raise instruction.unsupported("its operands do not fit its form")
    return operand.items


def _values(lanes: Lanes, instruction: Instruction, operand: Operand, fragment: Fragment) -> list[str]:
    return [lanes.use(item, "double") for item in _registers(instruction, operand, fragment)]


def _spread(lanes: Lanes, registers: list[str], fragment: Fragment, elements: list[tuple[int, int]]) -> str:
    """Each lane's element. All lanes find theirs in the same register."""
    places = [fragment.place(*element) for element in elements]
    ((register),) = {place.register for place in places}
    order = ", ".join(f"i32 {place.lane}" for place in places)
    return lanes.op(f"shufflevector {VD} {registers[register]}, {VD} poison, <32 x i32> <{order}>")
