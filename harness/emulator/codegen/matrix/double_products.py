"""Emits mma of f64 (PTX ISA 9.7.14.5.14): each element of D is a chain of fused multiply-adds in ascending K.

It is documented that each step rounds as `fma.f64` does. The order is not documented; an A100 has it (Fasi and others,
"Numerical behavior of NVIDIA tensor cores", 2021), and it was not tested on a GPU here.
"""

from __future__ import annotations

from harness.emulator.codegen.instructions.warp import check_whole_warp
from harness.emulator.codegen.matrix.fragments import Fragment, mma_layout
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand, Vector

DOUBLE_SHAPES = ((8, 4), (16, 4), (16, 8), (16, 16))
"""Rows and K of the supported shapes."""
VD = vector("double")


def multiply_doubles(lanes: WarpEmitter, instruction: Instruction, rows: int, depth: int, rounding: str) -> None:
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


def _values(lanes: WarpEmitter, instruction: Instruction, operand: Operand, fragment: Fragment) -> list[str]:
    return [lanes.use(item, "double") for item in _registers(instruction, operand, fragment)]


def _spread(lanes: WarpEmitter, registers: list[str], fragment: Fragment, elements: list[tuple[int, int]]) -> str:
    """Broadcast each lane's element, which is in the same register for all lanes."""
    places = [fragment.place(*element) for element in elements]
    ((register),) = {place.register for place in places}
    order = ", ".join(f"i32 {place.lane}" for place in places)
    return lanes.op(f"shufflevector {VD} {registers[register]}, {VD} poison, <32 x i32> <{order}>")
