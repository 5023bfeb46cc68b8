"""Emits cvt to and from pairs of e4m3 and e5m2 (PTX ISA 9.7.9.21) with bit operations.

f16 can represent both. e5m2 is its upper byte; e4m3 has one more fraction bit, an exponent bias that is smaller by 8,
no infinities, and a NaN with all bits but the sign set.
"""

from __future__ import annotations

from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.halves import from_float, put_packed, to_float, unpack, without_negatives
from harness.emulator.codegen.vector_ir_builder import splat, splat_float, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction
from harness.ptx.types import TYPES

PAIRS = {"e4m3x2": (3, -6, 448.0), "e5m2x2": (2, -14, 57344.0)}
"""Fraction bits, exponent of the smallest normal number, and largest number, by name."""
_HALF = TYPES["f16"]
_LOWER = {"e4m3x2": 2.0**-8, "e5m2x2": 1.0}
"""Factor that converts the format's exponents to those of f16."""
_NAN = 0x7F


def is_of_eight_bits(instruction: Instruction) -> bool:
    """Whether a cvt has such a pair as destination or source."""
    return any(modifier in PAIRS for modifier in instruction.modifiers)


def convert_eight_bits(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cvt.rn.satfinite{.relu}.PAIR.{f32, f16x2}, cvt.rn{.relu}.f16x2.PAIR."""
    form = Form(instruction)
    encodes = instruction.modifiers[-1] not in PAIRS
    pair = form.choice(*PAIRS)
    relu = form.flag("relu")
    fits = form.flag("rn") and form.flag("satfinite") == encodes
    kind = form.type("f32 f16x2" if encodes else "f16x2")
    form.end()
    destination, *sources = instruction.operands
    if pair is None or not fits or len(sources) != (2 if kind.name == "f32" else 1):
        raise instruction.unsupported("its operands do not fit its form")
    if not encodes:
        low, high = (_decoded(lanes, pair, lanes.use(sources[0], "i16"), shift) for shift in (0, 8))
        parts = [without_negatives(lanes, bits) if relu else bits for bits in (low, high)]
        put_packed(lanes, destination, kind, parts)
        return
    if kind.name == "f32":
        values = [lanes.use(source, "float") for source in reversed(sources)]
    else:
        values = [to_float(lanes, _HALF, bits) for bits in unpack(lanes, sources[0], kind)]
    low, high = (_encoded(lanes, pair, value, relu) for value in values)
    lanes.put(destination, lanes.binary("or", "i16", low, lanes.binary("shl", "i16", high, splat("i16", 8))), "i16")


def _decoded(lanes: WarpEmitter, pair: str, both: str, shift: int) -> str:
    """Convert one of the two bytes to f16, exactly."""
    upper = lanes.binary("shl", "i16", lanes.binary("lshr", "i16", both, splat("i16", shift)), splat("i16", 8))
    if pair == "e5m2x2":
        # By way of float, which maps all NaNs to one pattern.
        return from_float(lanes, _HALF, to_float(lanes, _HALF, upper))
    sign = lanes.binary("and", "i16", upper, splat("i16", 0x8000))
    size = lanes.binary("lshr", "i16", lanes.binary("and", "i16", upper, splat("i16", 0x7F00)), splat("i16", 1))
    lowered = to_float(lanes, _HALF, lanes.binary("or", "i16", sign, size))
    value = lanes.binary("fmul", "float", lowered, splat_float("float", 1 / _LOWER[pair]))
    nan = lanes.compare("eq", "i16", size, splat("i16", _NAN << 7))
    return lanes.select("i16", nan, splat("i16", 0x7FFF), from_float(lanes, _HALF, value))


def _encoded(lanes: WarpEmitter, pair: str, value: str, relu: bool) -> str:
    """Convert a float to the nearest byte, as i16: round to the format's precision, then rebias the exponent."""
    fraction, lowest, largest = PAIRS[pair]
    kind = vector("float")
    size = lanes.intrinsic("llvm.fabs.v32f32", kind, (kind, value))
    size = lanes.intrinsic("llvm.minnum.v32f32", kind, (kind, size), (kind, splat_float("float", largest)))
    exponent = lanes.binary("lshr", "i32", lanes.cast("bitcast", "float", size, "i32"), splat("i32", 23))
    small = lanes.compare("slt", "i32", exponent, splat("i32", 127 + lowest))
    exponent = lanes.select("i32", small, splat("i32", 127 + lowest), exponent)
    # Adding 1.5 * 2**23 units of the last place rounds to nearest even.
    step = lanes.binary("add", "i32", exponent, splat("i32", 23 - fraction))
    magic = lanes.binary("or", "i32", lanes.binary("shl", "i32", step, splat("i32", 23)), splat("i32", 0x400000))
    magic = lanes.cast("bitcast", "i32", magic, "float")
    rounded = lanes.binary("fsub", "float", lanes.binary("fadd", "float", size, magic), magic)
    half = from_float(lanes, _HALF, lanes.binary("fmul", "float", rounded, splat_float("float", _LOWER[pair])))
    bits = lanes.binary("lshr", "i16", half, splat("i16", 10 - fraction))
    word = lanes.cast("bitcast", "float", value, "i32")
    negative = lanes.compare("slt", "i32", word, splat("i32", 0))
    signed = splat("i16", 0) if relu else lanes.binary("or", "i16", bits, splat("i16", 0x80))
    bits = lanes.select("i16", negative, signed, bits)
    nan = lanes.compare("uno", "float", value, value)
    return lanes.select("i16", nan, splat("i16", _NAN), bits)
