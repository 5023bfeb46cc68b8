"""Arithmetic on f16, bf16 and their pairs (PTX ISA 9.7.4): computed wider, rounded once.

float32 holds more than twice the digits of either format, so add, sub and mul in float32 round to the right result;
fma goes through double with rounding to odd, which is exact in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.emulator.codegen.floating import extreme, saturate
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.table import emits
from harness.emulator.codegen.vocabulary import INTEGER, splat, splat_float
from harness.emulator.ptx.instructions import Instruction, Operand
from harness.emulator.ptx.types import PtxType


def to_float(lanes: Lanes, kind: PtxType, bits: str) -> str:
    """i16 -> float, exact."""
    return lanes.prelude("bfloat_to_float" if kind.kind == "bf" else "half_to_float", bits)


def from_float(lanes: Lanes, kind: PtxType, value: str) -> str:
    """Float -> i16, to nearest even."""
    return lanes.prelude("float_to_bfloat" if kind.kind == "bf" else "float_to_half", value)


def unpack(lanes: Lanes, operand: Operand, kind: PtxType) -> list[str]:
    """The operand's one element, or the two 16-bit ones of a packed type, as integers."""
    if kind.packed == 1:
        return [lanes.use(operand, INTEGER[kind.bits])]
    both = lanes.use(operand, "i32")
    high = lanes.binary("lshr", "i32", both, splat("i32", 16))
    return [lanes.cast("trunc", "i32", both, "i16"), lanes.cast("trunc", "i32", high, "i16")]


def put_packed(lanes: Lanes, destination: Operand, kind: PtxType, elements: list[str]) -> None:
    """The other way: one integer, or two of 16 bits -> the destination."""
    if kind.packed == 1:
        lanes.put(destination, elements[0], INTEGER[kind.bits])
        return
    low, high = (lanes.cast("zext", "i16", e, "i32") for e in elements)
    lanes.put(destination, lanes.binary("or", "i32", low, lanes.binary("shl", "i32", high, splat("i32", 16))), "i32")


def _elementwise(lanes: Lanes, instruction: Instruction, compute: Callable[..., str]) -> None:
    """`compute(kind, *floats)` per element; handles `.ftz`, `.sat`, `.relu` and packing."""
    form = Form(instruction)
    kind = form.type()
    ftz, sat, relu = form.flag("ftz"), form.flag("sat"), form.flag("relu")
    rounding = form.choice("rn", "rz", "rm", "rp")
    form.choice("approx")
    nan = form.flag("NaN")
    form.end()
    if rounding not in (None, "rn"):
        raise instruction.unsupported("directed rounding")
    if ftz and kind.kind == "f" and instruction.opcode not in ("ex2", "tanh", "neg", "abs"):
        raise instruction.unsupported("modifier '.ftz' on f16")
    columns = zip(*(unpack(lanes, o, kind) for o in instruction.operands[1:]))
    results = []
    for column in columns:
        value = compute(kind, nan, *(to_float(lanes, kind, bits) for bits in column))
        if sat:
            value = saturate(lanes, "float", value)
        if relu:
            zero = splat_float("float", 0.0)
            value = lanes.select("float", lanes.compare("ult", "float", value, zero), zero, value)
        results.append(from_float(lanes, kind, value))
    put_packed(lanes, instruction.operands[0], kind, results)


@emits("add.half", "sub.half", "mul.half")
def arithmetic(lanes: Lanes, instruction: Instruction) -> None:
    """add, sub, mul."""
    word = "f" + instruction.opcode
    _elementwise(lanes, instruction, lambda kind, nan, x, y: lanes.binary(word, "float", x, y))


@emits("fma.half")
def fma(lanes: Lanes, instruction: Instruction) -> None:
    """fma: the product is exact in double, the sum is rounded to odd, then to nearest."""

    def compute(kind: PtxType, nan: bool, x: str, y: str, z: str) -> str:
        a, b, c = (lanes.cast("fpext", "float", value, "double") for value in (x, y, z))
        total = lanes.prelude("add_odd", lanes.binary("fmul", "double", a, b), c)
        return lanes.prelude("double_to_float_odd", total)

    _elementwise(lanes, instruction, compute)


@emits("min.half", "max.half")
def min_max(lanes: Lanes, instruction: Instruction) -> None:
    """min, max."""
    _elementwise(lanes, instruction, lambda kind, nan, x, y: extreme(lanes, instruction.opcode, "float", x, y, nan))


@emits("ex2.half", "tanh.half")
def transcendental(lanes: Lanes, instruction: Instruction) -> None:
    """ex2, tanh: approximate."""
    name = "exp2_float" if instruction.opcode == "ex2" else "tanh_float"
    _elementwise(lanes, instruction, lambda kind, nan, x: lanes.prelude(name, x))


@emits("neg.half", "abs.half")
def neg_abs(lanes: Lanes, instruction: Instruction) -> None:
    """neg, abs: on the sign bits alone."""
    form = Form(instruction)
    kind = form.type()
    if form.flag("ftz"):
        raise instruction.unsupported("modifier '.ftz'")
    form.end()
    results = []
    for bits in unpack(lanes, instruction.operands[1], kind):
        word, constant = ("xor", 0x8000) if instruction.opcode == "neg" else ("and", 0x7FFF)
        results.append(lanes.binary(word, "i16", bits, splat("i16", constant)))
    put_packed(lanes, instruction.operands[0], kind, results)
