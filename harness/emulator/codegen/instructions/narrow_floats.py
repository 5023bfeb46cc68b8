"""Emits cvt to and from pairs of floats of 8, 6 and 4 bits (PTX ISA 9.7.9.21) with bit operations.

f16 can represent all of them but ue8m0. e5m2 is its upper byte; the others have another number of fraction bits and an
exponent bias that is smaller. Only e5m2 has infinities, and only the types of 8 bits have NaN. ue8m0 has an exponent
alone, that of a float: conversions ignore the sign, as NVIDIA's host code for them does (cuda_fp8.hpp).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.halves import from_float, put_packed, to_float, unpack, without_negatives
from harness.emulator.codegen.vector_ir_builder import splat, splat_float, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction
from harness.ptx.types import TYPES


@dataclass(frozen=True)
class _Format:
    """A type of which two are packed."""

    exponent_bits: int
    fraction_bits: int
    largest: float
    nan: int
    """What NaN becomes."""

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return self.exponent_bits + self.fraction_bits

    @property
    def pitch(self) -> int:
        """Bits from one element of a pair to the other."""
        return 4 if self.sign_bit == 3 else 8

    @property
    def lowered(self) -> float:
        """The factor that converts its exponents to those of f16."""
        return float(2.0 ** (self.bias - 15))


_PAIRS = {
    "e4m3x2": _Format(4, 3, 448.0, 0x7F), "e5m2x2": _Format(5, 2, 57344.0, 0x7F), "e2m3x2": _Format(2, 3, 7.5, 0x1F),
    "e3m2x2": _Format(3, 2, 28.0, 0x1F), "e2m1x2": _Format(2, 1, 6.0, 0x7),
}  # fmt: skip
_SCALES = "ue8m0x2"
_HALF = TYPES["f16"]
_F16_NAN, _BF16_NAN, _SCALE_NAN = 0x7FFF, 0x7FFF, 0xFF


def is_narrow(instruction: Instruction) -> bool:
    """Whether a cvt has such a pair as destination or source."""
    return any(modifier in _PAIRS or modifier == _SCALES for modifier in instruction.modifiers)


def convert_narrow(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cvt.rn.satfinite{.relu}.PAIR.{f32, f16x2, bf16x2}, cvt.rn{.relu}.f16x2.PAIR, and those of ue8m0x2."""
    if _SCALES in instruction.modifiers:
        _convert_scales(lanes, instruction)
        return
    form = Form(instruction)
    encodes = instruction.modifiers[-1] not in _PAIRS
    pair = form.choice(*_PAIRS)
    relu = form.flag("relu")
    fits = form.flag("rn") and form.flag("satfinite") == encodes
    kind = form.type("f32 f16x2 bf16x2" if encodes else "f16x2")
    form.end()
    destination, *sources = instruction.operands
    if pair is None or not fits or len(sources) != (2 if kind.name == "f32" else 1):
        raise instruction.unsupported("its operands do not fit its form")
    narrow = _PAIRS[pair]
    if not encodes:
        both = lanes.use(sources[0], "i8" if narrow.pitch == 4 else "i16")
        both = lanes.cast("zext", "i8", both, "i16") if narrow.pitch == 4 else both
        low, high = (_decoded(lanes, narrow, both, shift) for shift in (0, narrow.pitch))
        parts = [without_negatives(lanes, bits) if relu else bits for bits in (low, high)]
        put_packed(lanes, destination, kind, parts)
        return
    if kind.name == "f32":
        values = [lanes.use(source, "float") for source in reversed(sources)]
    else:
        values = [to_float(lanes, kind, bits) for bits in unpack(lanes, sources[0], kind)]
    low, high = (_encoded(lanes, narrow, value, relu) for value in values)
    both = lanes.binary("or", "i16", low, lanes.binary("shl", "i16", high, splat("i16", narrow.pitch)))
    if narrow.pitch == 4:
        lanes.put(destination, lanes.cast("trunc", "i16", both, "i8"), "i8")
    else:
        lanes.put(destination, both, "i16")


def _decoded(lanes: WarpEmitter, narrow: _Format, both: str, shift: int) -> str:
    """Convert one of the two elements to f16, exactly."""
    bits = lanes.binary("lshr", "i16", both, splat("i16", shift))
    sign = lanes.binary("shl", "i16", bits, splat("i16", 15 - narrow.sign_bit))
    sign = lanes.binary("and", "i16", sign, splat("i16", 0x8000))
    size = lanes.binary("and", "i16", bits, splat("i16", (1 << narrow.sign_bit) - 1))
    widened = lanes.binary("shl", "i16", size, splat("i16", 10 - narrow.fraction_bits))
    lowered = to_float(lanes, _HALF, lanes.binary("or", "i16", sign, widened))
    # By way of float also for e5m2, which maps all NaNs to one pattern.
    value = lanes.binary("fmul", "float", lowered, splat_float("float", 1 / narrow.lowered))
    half = from_float(lanes, _HALF, value)
    if (narrow.exponent_bits, narrow.fraction_bits) != (4, 3):
        return half
    nan = lanes.compare("eq", "i16", size, splat("i16", narrow.nan))
    return lanes.select("i16", nan, splat("i16", _F16_NAN), half)


def _encoded(lanes: WarpEmitter, narrow: _Format, value: str, relu: bool) -> str:
    """Convert a float to the nearest element, as i16: round to the type's precision, then rebias the exponent."""
    fraction, lowest = narrow.fraction_bits, 1 - narrow.bias
    kind = vector("float")
    size = lanes.intrinsic("llvm.fabs.v32f32", kind, (kind, value))
    size = lanes.intrinsic("llvm.minnum.v32f32", kind, (kind, size), (kind, splat_float("float", narrow.largest)))
    exponent = lanes.binary("lshr", "i32", lanes.cast("bitcast", "float", size, "i32"), splat("i32", 23))
    small = lanes.compare("slt", "i32", exponent, splat("i32", 127 + lowest))
    exponent = lanes.select("i32", small, splat("i32", 127 + lowest), exponent)
    # Adding 1.5 * 2**23 units of the last place rounds to nearest even.
    step = lanes.binary("add", "i32", exponent, splat("i32", 23 - fraction))
    magic = lanes.binary("or", "i32", lanes.binary("shl", "i32", step, splat("i32", 23)), splat("i32", 0x400000))
    magic = lanes.cast("bitcast", "i32", magic, "float")
    rounded = lanes.binary("fsub", "float", lanes.binary("fadd", "float", size, magic), magic)
    half = from_float(lanes, _HALF, lanes.binary("fmul", "float", rounded, splat_float("float", narrow.lowered)))
    bits = lanes.binary("lshr", "i16", half, splat("i16", 10 - fraction))
    word = lanes.cast("bitcast", "float", value, "i32")
    negative = lanes.compare("slt", "i32", word, splat("i32", 0))
    signed = splat("i16", 0) if relu else lanes.binary("or", "i16", bits, splat("i16", 1 << narrow.sign_bit))
    bits = lanes.select("i16", negative, signed, bits)
    nan = lanes.compare("uno", "float", value, value)
    return lanes.select("i16", nan, splat("i16", narrow.nan), bits)


# ue8m0 ----------------------------------------------------------------------------------------------------------------


def _convert_scales(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cvt.{rz, rp}{.satfinite}.ue8m0x2.{f32, bf16x2}, cvt.rn.bf16x2.ue8m0x2."""
    form = Form(instruction)
    encodes = instruction.modifiers[-1] != _SCALES
    form.flag(_SCALES)
    rounding, finite = form.choice("rz", "rp", "rn"), form.flag("satfinite")
    kind = form.type("f32 bf16x2" if encodes else "bf16x2")
    form.end()
    destination, *sources = instruction.operands
    fits = rounding in ("rz", "rp") if encodes else rounding == "rn" and not finite
    if not fits or len(sources) != (2 if kind.name == "f32" else 1):
        raise instruction.unsupported("its operands do not fit its form")
    if not encodes:
        both = lanes.use(sources[0], "i16")
        put_packed(lanes, destination, kind, [_power(lanes, both, shift) for shift in (0, 8)])
        return
    if kind.name == "f32":
        words = [lanes.use(source, "i32") for source in reversed(sources)]
    else:
        both = lanes.use(sources[0], "i32")
        upper = lanes.binary("and", "i32", both, splat("i32", -1 << 16))
        words = [lanes.binary("shl", "i32", both, splat("i32", 16)), upper]
    low, high = (_exponent(lanes, word, rounding == "rp", finite) for word in words)
    both = lanes.binary("or", "i32", low, lanes.binary("shl", "i32", high, splat("i32", 8)))
    lanes.put(destination, lanes.cast("trunc", "i32", both, "i16"), "i16")


def _exponent(lanes: WarpEmitter, word: str, up: bool, finite: bool) -> str:
    """The exponent of a float, given by its bits, rounded down or up to a power of two, as i32."""
    size = lanes.binary("and", "i32", word, splat("i32", 0x7FFFFFFF))
    exponent = lanes.binary("lshr", "i32", size, splat("i32", 23))
    if up:
        # The smallest power is 2**-127, the subnormal 0x400000.
        inexact = lanes.compare("ne", "i32", lanes.binary("and", "i32", size, splat("i32", 0x7FFFFF)), splat("i32", 0))
        above = lanes.compare("ugt", "i32", size, splat("i32", 0x400000))
        below = lanes.compare("ult", "i32", size, splat("i32", 0x7F800000))
        raised = lanes.binary("and", "i1", inexact, lanes.binary("and", "i1", above, below))
        exponent = lanes.binary("add", "i32", exponent, lanes.cast("zext", "i1", raised, "i32"))
    if finite:
        number = lanes.compare("ule", "i32", size, splat("i32", 0x7F800000))
        most = lanes.intrinsic("llvm.umin.v32i32", vector("i32"), (vector("i32"), exponent),
                               (vector("i32"), splat("i32", _SCALE_NAN - 1)))  # fmt: skip
        exponent = lanes.select("i32", number, most, exponent)
    return exponent


def _power(lanes: WarpEmitter, both: str, shift: int) -> str:
    """One of two ue8m0 as bf16, i16."""
    byte = lanes.binary("and", "i16", lanes.binary("lshr", "i16", both, splat("i16", shift)), splat("i16", 0xFF))
    power = lanes.binary("shl", "i16", byte, splat("i16", 7))
    smallest = lanes.compare("eq", "i16", byte, splat("i16", 0))
    nan = lanes.compare("eq", "i16", byte, splat("i16", _SCALE_NAN))
    power = lanes.select("i16", smallest, splat("i16", 0x40), power)
    return lanes.select("i16", nan, splat("i16", _BF16_NAN), power)
