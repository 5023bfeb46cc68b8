"""Emits arithmetic of sm_100 on pairs of f32 (PTX ISA 9.7.3, `.f32x2`) and on f32 with f16 or bf16 (9.7.5).

Each element is rounded like the scalar instruction on f32.
"""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.floating import ROUNDINGS, rounded, saturate
from harness.emulator.codegen.instructions.halves import to_float
from harness.emulator.codegen.vector_ir_builder import splat
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand
from harness.ptx.types import TYPES

_HALF_BITS = 32


@emits("add.pair", "sub.pair", "mul.pair", "fma.pair")
def arithmetic_of_pairs(lanes: WarpEmitter, instruction: Instruction) -> None:
    """{add,sub,mul,fma}{.rnd}{.ftz}.f32x2, on registers of 64 bits with the first element in the lower half."""
    form = Form(instruction)
    form.type("f32x2")
    rounding, ftz = form.choice(*ROUNDINGS), form.flag("ftz")
    form.end()
    _require_rounding(instruction, rounding)
    destination, *operands = instruction.operands
    results = []
    for values in zip(*(_elements(lanes, operand) for operand in operands)):
        given = [lanes.flush(value) for value in values] if ftz else list(values)
        result = rounded(lanes, instruction.opcode, "float", rounding, given)
        result = lanes.flush(result) if ftz else result
        results.append(lanes.cast("zext", "i32", lanes.cast("bitcast", "float", result, "i32"), "i64"))
    low, high = results
    both = lanes.binary("or", "i64", low, lanes.binary("shl", "i64", high, splat("i64", _HALF_BITS)))
    lanes.put(destination, both, "i64")


@emits("add.mixed", "sub.mixed", "fma.mixed")
def mixed_arithmetic(lanes: WarpEmitter, instruction: Instruction) -> None:
    """{add,sub}{.rnd}{.sat}.f32.atype d, a, c and fma.rnd{.sat}.f32.abtype d, a, b, c: all but c have 16 bits."""
    form = Form(instruction)
    wide, narrow = form.types()
    rounding, saturates = form.choice(*ROUNDINGS), form.flag("sat")
    form.end()
    _require_rounding(instruction, rounding)
    if wide != TYPES["f32"] or narrow.packed != 1:
        raise instruction.unsupported(f"type '.{narrow.name}' with '.{wide.name}'")
    destination, *converted, last = instruction.operands
    values = [to_float(lanes, narrow, lanes.use(operand, "i16")) for operand in converted]
    result = rounded(lanes, instruction.opcode, "float", rounding, [*values, lanes.use(last, "float")])
    lanes.put(destination, saturate(lanes, "float", result) if saturates else result, "float")


def _require_rounding(instruction: Instruction, rounding: str | None) -> None:
    if rounding is None and instruction.opcode == "fma":
        raise instruction.unsupported("its rounding")


def _elements(lanes: WarpEmitter, operand: Operand) -> list[str]:
    """Both elements of a pair as floats, the lower half first."""
    both = lanes.use(operand, "i64")
    high = lanes.binary("lshr", "i64", both, splat("i64", _HALF_BITS))
    return [lanes.cast("bitcast", "i32", lanes.cast("trunc", "i64", half, "i32"), "float") for half in (both, high)]
