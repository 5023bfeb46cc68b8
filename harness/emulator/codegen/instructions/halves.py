"""Emits arithmetic on f16, bf16 and their pairs (PTX ISA 9.7.4): computed in a wider type and rounded once.

float32 has more than twice the digits of either format, so add, sub and mul in float32 round to the correct result; fma
uses double with rounding to odd, for the same reason.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.floating import extreme, saturate
from harness.emulator.codegen.vector_ir_builder import INTEGER, splat
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand
from harness.ptx.types import PtxType


def to_float(lanes: WarpEmitter, kind: PtxType, bits: str) -> str:
    """Convert i16 to float, exactly."""
    return lanes.prelude("bfloat_to_float" if kind.kind == "bf" else "half_to_float", bits)


def from_float(lanes: WarpEmitter, kind: PtxType, value: str) -> str:
    """Convert float to i16, to nearest even."""
    return lanes.prelude("float_to_bfloat" if kind.kind == "bf" else "float_to_half", value)


def unpack(lanes: WarpEmitter, operand: Operand, kind: PtxType) -> list[str]:
    """The operand's single element, or the two 16-bit ones of a packed type, as integers."""
    if kind.packed == 1:
        return [lanes.use(operand, INTEGER[kind.bits])]
    both = lanes.use(operand, "i32")
    high = lanes.binary("lshr", "i32", both, splat("i32", 16))
    return [lanes.cast("trunc", "i32", both, "i16"), lanes.cast("trunc", "i32", high, "i16")]


def put_packed(lanes: WarpEmitter, destination: Operand, kind: PtxType, elements: list[str]) -> None:
    """Write one integer, or two of 16 bits, to the destination."""
    if kind.packed == 1:
        lanes.put(destination, elements[0], INTEGER[kind.bits])
        return
    low, high = (lanes.cast("zext", "i16", e, "i32") for e in elements)
    lanes.put(destination, lanes.binary("or", "i32", low, lanes.binary("shl", "i32", high, splat("i32", 16))), "i32")


def flush(lanes: WarpEmitter, kind: PtxType, bits: str) -> str:
    """`.ftz` of one i16 element."""
    return lanes.prelude("flush_bfloat" if kind.kind == "bf" else "flush_half", bits)


def without_negatives(lanes: WarpEmitter, bits: str) -> str:
    """`.relu` of one i16 element: negative numbers and -0 become +0; NaN, which has no sign here, is kept."""
    negative = lanes.compare("slt", "i16", bits, splat("i16", 0))
    return lanes.select("i16", negative, splat("i16", 0), bits)


def _elementwise(lanes: WarpEmitter, instruction: Instruction, compute: Callable[..., str], *allowed: str) -> None:
    """Apply `compute(is_nan_form, *floats)` per element, and handle packing and the modifiers in `allowed`.

    `.ftz` and `.sat` exist for f16 only, except that ex2 of bf16 requires `.ftz`.
    """
    form = Form(instruction)
    kind = form.type("f16 f16x2 bf16 bf16x2")
    taken = {word for word in allowed if form.flag(word)}
    form.end()
    is_bfloat = kind.kind == "bf"
    if instruction.opcode == "ex2":
        fits = "approx" in taken and ("ftz" in taken) == is_bfloat
    else:
        fits = not (is_bfloat and taken & {"ftz", "sat"}) and ("approx" in allowed) == ("approx" in taken)
    if not fits or {"sat", "relu"} <= taken:
        raise instruction.unsupported()
    results = []
    for column in zip(*(unpack(lanes, o, kind) for o in instruction.operands[1:])):
        values = [flush(lanes, kind, bits) if "ftz" in taken else bits for bits in column]
        value = compute("NaN" in taken, *(to_float(lanes, kind, bits) for bits in values))
        if "sat" in taken:
            value = saturate(lanes, "float", value)
        bits = from_float(lanes, kind, value)
        bits = flush(lanes, kind, bits) if "ftz" in taken else bits
        results.append(without_negatives(lanes, bits) if "relu" in taken else bits)
    put_packed(lanes, instruction.operands[0], kind, results)


@emits("add.half", "sub.half", "mul.half")
def arithmetic(lanes: WarpEmitter, instruction: Instruction) -> None:
    """add, sub, mul."""
    word = "f" + instruction.opcode
    _elementwise(lanes, instruction, lambda _, x, y: lanes.binary(word, "float", x, y), "rn", "ftz", "sat")


@emits("fma.half")
def fma(lanes: WarpEmitter, instruction: Instruction) -> None:
    """fma: the product is exact in double, the sum is rounded to odd, then to nearest."""

    def compute(_: bool, x: str, y: str, z: str) -> str:
        a, b, c = (lanes.cast("fpext", "float", value, "double") for value in (x, y, z))
        total = lanes.prelude("add_odd", lanes.binary("fmul", "double", a, b), c)
        return lanes.prelude("double_to_float_odd", total)

    _elementwise(lanes, instruction, compute, "rn", "ftz", "sat", "relu")


@emits("min.half", "max.half")
def min_max(lanes: WarpEmitter, instruction: Instruction) -> None:
    """min, max."""
    opcode = instruction.opcode
    _elementwise(lanes, instruction, lambda nan, x, y: extreme(lanes, opcode, "float", x, y, nan), "ftz", "NaN")


@emits("ex2.half", "tanh.half")
def transcendental(lanes: WarpEmitter, instruction: Instruction) -> None:
    """ex2, tanh: approximate."""
    name, ftz = ("exp2_float", ["ftz"]) if instruction.opcode == "ex2" else ("tanh_float", [])
    _elementwise(lanes, instruction, lambda _, x: lanes.prelude(name, x), "approx", *ftz)


@emits("neg.half", "abs.half")
def neg_abs(lanes: WarpEmitter, instruction: Instruction) -> None:
    """neg, abs: on the sign bits; NaN becomes the hardware's canonical pattern."""
    form = Form(instruction)
    ftz = form.flag("ftz")
    kind = form.type("f16 f16x2" if ftz else "f16 f16x2 bf16 bf16x2")
    form.end()
    word, constant = ("xor", 0x8000) if instruction.opcode == "neg" else ("and", 0x7FFF)
    results = []
    for bits in unpack(lanes, instruction.operands[1], kind):
        value = flush(lanes, kind, bits) if ftz else bits
        magnitude = lanes.binary("and", "i16", bits, splat("i16", 0x7FFF))
        nan = lanes.compare("ugt", "i16", magnitude, splat("i16", 0x7F80 if kind.kind == "bf" else 0x7C00))
        value = lanes.binary(word, "i16", value, splat("i16", constant))
        results.append(lanes.select("i16", nan, splat("i16", 0x7FFF), value))
    put_packed(lanes, instruction.operands[0], kind, results)
