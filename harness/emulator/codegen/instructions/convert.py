"""Emits mov, cvt and cvta (PTX ISA 9.7.9.1, .21, .20)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.floating import ROUNDINGS, saturate
from harness.emulator.codegen.instructions.halves import from_float, put_packed, to_float, without_negatives
from harness.emulator.codegen.instructions.memory import STATE_SPACES
from harness.emulator.codegen.instructions.narrow_floats import convert_narrow, is_narrow
from harness.emulator.codegen.vector_ir_builder import BITS, FLOAT, INTEGER, splat, splat_float, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand, Symbol, Vector
from harness.ptx.types import PtxType

_ROUND_TO_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
_REGISTERS = "pred b16 b32 b64 b128 u16 u32 u64 s16 s32 s64 f16 bf16 f16x2 bf16x2 f32 f64"
_INTEGERS = "u8 s8 u16 s16 u32 s32 u64 s64"


@emits("mov")
def mov(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mov: a register, a literal, an address, or packing and unpacking `{ }`."""
    form = Form(instruction)
    kind = form.type(_REGISTERS)
    form.end()
    destination, source = instruction.operands
    for operand in (destination, source):
        if isinstance(operand, Vector) and kind.bits // max(1, len(operand.items)) not in INTEGER:
            raise instruction.unsupported("a vector of these parts")
    if kind.bits == 128:
        _require_whole(lanes, instruction)
    if isinstance(destination, Vector):
        _unpack(lanes, kind, destination.items, lanes.use(source, INTEGER[kind.bits]))
    elif isinstance(source, Vector):
        lanes.put(destination, _pack(lanes, kind, source.items), INTEGER[kind.bits])
    elif isinstance(source, Symbol):
        lanes.put(destination, lanes.use(source, "i64"), "i64")
    else:
        element = FLOAT[kind.bits] if kind.is_float and kind.bits > 16 else INTEGER[kind.total_bits]
        lanes.put(destination, lanes.use(source, element), element)


def _require_whole(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Require that mov.b128 has a register of 128 bits and another one, or two or four parts."""
    whole = [operand for operand in instruction.operands if lanes.has_128_bits(operand)]
    parts = [len(operand.items) for operand in instruction.operands if isinstance(operand, Vector)]
    if (len(whole), parts) not in ((2, []), (1, [2]), (1, [4])):
        raise instruction.unsupported("its operands do not fit its form")


def _unpack(lanes: WarpEmitter, kind: PtxType, items: tuple[Operand, ...], whole: str) -> None:
    element = INTEGER[kind.bits]
    part_bits = kind.bits // len(items)
    for index, item in enumerate(items):
        moved = lanes.binary("lshr", element, whole, splat(element, index * part_bits)) if index else whole
        lanes.put(item, lanes.cast("trunc", element, moved, INTEGER[part_bits]), INTEGER[part_bits])


def _pack(lanes: WarpEmitter, kind: PtxType, items: tuple[Operand, ...]) -> str:
    element = INTEGER[kind.bits]
    part_bits = kind.bits // len(items)
    whole = splat(element, 0)
    for index, item in enumerate(items):
        part = lanes.cast("zext", INTEGER[part_bits], lanes.use(item, INTEGER[part_bits]), element)
        if index:
            part = lanes.binary("shl", element, part, splat(element, index * part_bits))
        whole = lanes.binary("or", element, whole, part)
    return whole


_WINDOWS = {"shared": at.SHARED_WINDOW, "local": at.LOCAL_WINDOW, "param": at.PARAM_WINDOW}


@emits("cvta")
def cvta(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cvta: conversion between addresses of a state space and generic addresses."""
    form = Form(instruction)
    to_space = form.flag("to")
    space = form.choice(*STATE_SPACES)
    form.type("u64")
    form.end()
    if space is None:
        raise instruction.unsupported()
    value = lanes.use(instruction.operands[1], "i64")
    window = _WINDOWS.get(space.partition("::")[0])
    # Addresses of variables in global and constant memory already include their window.
    if window is not None:
        if to_space:
            value = lanes.binary("and", "i64", value, splat("i64", 0xFFFFFFFF))
        else:
            value = lanes.binary("or", "i64", value, splat("i64", window << at.WINDOW_BITS))
    lanes.put(instruction.operands[0], value, "i64")


@emits("isspacep")
def is_space(lanes: WarpEmitter, instruction: Instruction) -> None:
    """isspacep: whether a generic address is in a state space. Parameters are also in global space."""
    form = Form(instruction)
    space = form.choice(*STATE_SPACES)
    form.end()
    if space is None:
        raise instruction.unsupported()
    address = lanes.use(instruction.operands[1], "i64")
    window = lanes.binary("lshr", "i64", address, splat("i64", at.WINDOW_BITS))
    number = _WINDOWS.get(space.partition("::")[0])
    if number == at.SHARED_WINDOW and space != "shared::cluster" and lanes.knows_clusters:
        own = lanes.binary("or", "i64", lanes.own_tag("i64"), splat("i64", number << at.WINDOW_BITS))
        first = lanes.binary("and", "i64", address, splat("i64", -1 << at.RANK_SHIFT))
        result = lanes.compare("eq", "i64", first, own)
    elif number is not None:
        result = lanes.compare("eq", "i64", window, splat("i64", number))
    else:
        result = splat("i1", 0)
        for kind, start in lanes.storage.addresses.values():
            if kind == "const":
                here = lanes.compare("eq", "i64", window, splat("i64", start >> at.WINDOW_BITS))
                result = lanes.binary("or", "i1", result, here)
        if space == "global":
            above = lanes.compare("uge", "i64", window, splat("i64", at.PARAM_WINDOW))
            result = lanes.select("i1", result, splat("i1", 0), above)
    lanes.put(instruction.operands[0], result, "i1")


# cvt ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Conversion:
    """A validated form of cvt."""

    instruction: Instruction
    target: PtxType
    source: PtxType
    rounding: str | None
    ftz: bool
    sat: bool
    relu: bool
    finite: bool

    @property
    def to_integral(self) -> str | None:
        """LLVM's name of a rounding to integral values; None without one."""
        return _ROUND_TO_INTEGRAL.get(self.rounding or "")


def _read_form(instruction: Instruction) -> _Conversion:
    form = Form(instruction)
    types = form.types()
    rounding = form.choice(*ROUNDINGS, "rna", *_ROUND_TO_INTEGRAL)
    flags = {word: form.flag(word) for word in ("ftz", "sat", "relu", "satfinite")}
    form.end()
    known = f"{_INTEGERS} f16 bf16 f32 f64".split()
    if len(types) != 2 or types[1].name not in known or types[0].name not in (*known, "f16x2", "bf16x2", "tf32"):
        raise instruction.unsupported()
    conversion = _Conversion(instruction, types[0], types[1], rounding, *flags.values())
    if not _exists(conversion):
        raise instruction.unsupported()
    return conversion


def _exists(conversion: _Conversion) -> bool:
    """Whether PTX has the form: a rounding mode is required where values may be inexact, and not allowed elsewhere."""
    target, source, rounding = conversion.target, conversion.source, conversion.rounding
    if conversion.ftz and "f32" not in (target.name, source.name):
        return False
    if conversion.sat and ("bf" in (target.kind, source.kind) or (not target.is_float and _holds(target, source))):
        return False
    if target.kind == "tf" or target.packed == 2 or conversion.relu or conversion.finite:
        fits = target.kind == "tf" if rounding == "rna" else rounding in ("rn", "rz")
        narrow = target.bits == 16 or (target.kind == "tf" and not conversion.finite)
        return fits and narrow and source.name == "f32" and not conversion.ftz and not conversion.sat
    integral = conversion.to_integral is not None
    if source.is_float and target.is_float:
        if integral:
            return target.bits == source.bits
        return rounding in ROUNDINGS or (rounding is None and target.bits >= source.bits)
    if source.is_float:
        return integral
    return rounding in ROUNDINGS if target.is_float else rounding is None


def _holds(target: PtxType, source: PtxType) -> bool:
    """Whether an integer type can represent all values of another one."""
    if source.is_float or (source.kind == "s" and target.kind != "s"):
        return False
    return target.bits - (target.kind == "s") >= source.bits - (source.kind == "s")


@emits("cvt")
def cvt(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cvt: conversions between integers and floats of 8 to 64 bits, tf32, two floats to a pair, and narrow pairs."""
    if is_narrow(instruction):
        convert_narrow(lanes, instruction)
        return
    conversion = _read_form(instruction)
    target, source = conversion.target, conversion.source
    destination, *operands = instruction.operands
    if len(operands) != target.packed:
        raise instruction.unsupported(f"a form with {len(instruction.operands)} operands")
    if target.packed == 2:
        high, low = operands
        parts = [_narrow(lanes, conversion, lanes.use(operand, "float"), "float") for operand in (low, high)]
        put_packed(lanes, destination, target, parts)
    elif target.kind == "tf":
        lanes.put(destination, _to_tf32(lanes, conversion, lanes.use(operands[0], "i32")), "i32")
    elif target.is_float:
        value, element = (_float if source.is_float else _integer_as_float)(lanes, conversion, operands[0])
        value = saturate(lanes, element, value) if conversion.sat else value
        _put_float(lanes, conversion, value, element)
    else:
        if source.is_float:
            value = _float_to_integer(lanes, conversion, *_float(lanes, conversion, operands[0]))
        else:
            value = _integer_to_integer(lanes, conversion, operands[0])
        lanes.put(destination, value, INTEGER[target.bits], signed=target.kind == "s")


def _float(lanes: WarpEmitter, conversion: _Conversion, operand: Operand) -> tuple[str, str]:
    """A float operand as `float` or `double`, flushed and rounded to an integral value if the form requires it."""
    source = conversion.source
    if source.bits == 16:
        value, element = to_float(lanes, source, lanes.use(operand, "i16")), "float"
    else:
        element = FLOAT[source.bits]
        value = lanes.use(operand, element)
    # An H200 does not flush what it rounds to f16, which would only be visible in a directed rounding.
    if conversion.ftz and element == "float" and conversion.target.name != "f16":
        value = lanes.flush(value)
    if conversion.to_integral:
        kind = vector(element)
        value = lanes.intrinsic(f"llvm.{conversion.to_integral}.v32f{BITS[element]}", kind, (kind, value))
    return value, element


def _integer_as_float(lanes: WarpEmitter, conversion: _Conversion, operand: Operand) -> tuple[str, str]:
    """An integer as a float from which the target can be rounded: exact, or a double rounded to odd."""
    target, source = conversion.target, conversion.source
    integer = INTEGER[source.bits]
    value = lanes.use(operand, integer)
    word = "sitofp" if source.kind == "s" else "uitofp"
    if target.bits > 16 and conversion.rounding == "rn":
        return lanes.cast(word, integer, value, FLOAT[target.bits]), FLOAT[target.bits]
    if source.bits == 64:
        if target.bits == 64:
            return _directed_double(lanes, value, source.kind == "s", str(conversion.rounding)), "double"
        value = _fold_low_bits(lanes, value, source.kind == "s")
    return lanes.cast(word, integer, value, "double"), "double"


def _directed_double(lanes: WarpEmitter, value: str, signed: bool, rounding: str) -> str:
    """An i64 as a double, rounded towards zero, or away from zero if `rm` or `rp` requires it."""
    zero = splat("i64", 0)
    negative = lanes.compare("slt", "i64", value, zero) if signed else splat("i1", 0)
    magnitude = lanes.select("i64", negative, lanes.binary("sub", "i64", zero, value), value)
    kind = vector("i64")
    zeros = lanes.intrinsic("llvm.ctlz.v32i64", kind, (kind, magnitude), ("i1", "false"))
    narrow = lanes.compare("ugt", "i64", zeros, splat("i64", 10))  # at most 53 bits
    dropped = lanes.select("i64", narrow, zero, lanes.binary("sub", "i64", splat("i64", 11), zeros))
    ones = lanes.binary("sub", "i64", lanes.binary("shl", "i64", splat("i64", 1), dropped), splat("i64", 1))
    low = lanes.binary("and", "i64", magnitude, ones)
    rounded = lanes.cast("uitofp", "i64", lanes.binary("xor", "i64", magnitude, low), "double")
    bits = lanes.cast("bitcast", "double", rounded, "i64")
    if rounding != "rz":
        inexact = lanes.compare("ne", "i64", low, zero)
        positive = lanes.binary("xor", "i1", negative, splat("i1", 1))
        away = lanes.binary("and", "i1", inexact, positive if rounding == "rp" else negative)
        bits = lanes.binary("add", "i64", bits, lanes.cast("zext", "i1", away, "i64"))
    sign = lanes.select("i64", negative, splat("i64", 1 << 63), zero)
    return lanes.cast("bitcast", "i64", lanes.binary("or", "i64", bits, sign), "double")


def _fold_low_bits(lanes: WarpEmitter, value: str, signed: bool) -> str:
    """An i64 that fits a double, with its lowest kept bit set if lower bits were: rounded to odd."""
    low = lanes.binary("and", "i64", value, splat("i64", 0x7FF))
    some = lanes.cast("zext", "i1", lanes.compare("ne", "i64", low, splat("i64", 0)), "i64")
    high = lanes.binary("xor", "i64", value, low)
    folded = lanes.binary("or", "i64", high, lanes.binary("shl", "i64", some, splat("i64", 11)))
    # Numbers of up to 53 bits, signed or not, are exact.
    raised = lanes.binary("add", "i64", value, splat("i64", 1 << 53 if signed else 0))
    small = lanes.compare("ult", "i64", raised, splat("i64", 1 << (54 if signed else 53)))
    return lanes.select("i64", small, value, folded)


def _put_float(lanes: WarpEmitter, conversion: _Conversion, value: str, element: str) -> None:
    target, rounding = conversion.target, conversion.rounding
    destination = conversion.instruction.operands[0]
    if target.bits == 16:
        lanes.put(destination, _narrow(lanes, conversion, value, element), "i16")
        return
    if element == "double" and target.bits == 32:
        single = _double_to_float(lanes, str(rounding), value)
        value = _flush_rounded(lanes, str(rounding), value, single) if conversion.ftz else single
    else:
        value = lanes.cast("fpext", element, value, FLOAT[target.bits])
        value = lanes.flush(value) if conversion.ftz and target.bits == 32 else value
    lanes.put(destination, value, FLOAT[target.bits])


def _flush_rounded(lanes: WarpEmitter, rounding: str, exact: str, rounded: str) -> str:
    """Flush values that would round below 2**-126 with an unlimited exponent range, tested by scaling with 2**64."""
    kind = vector("float")
    raised = lanes.binary("fmul", "double", exact, splat_float("double", 2.0**64))
    size = lanes.intrinsic("llvm.fabs.v32f32", kind, (kind, _double_to_float(lanes, rounding, raised)))
    tiny = lanes.compare("olt", "float", size, splat_float("float", 2.0**-62))
    zero = lanes.intrinsic("llvm.copysign.v32f32", kind, (kind, splat_float("float", 0.0)), (kind, rounded))
    return lanes.select("float", tiny, zero, rounded)


def _double_to_float(lanes: WarpEmitter, rounding: str, value: str) -> str:
    if rounding == "rn":
        return lanes.cast("fptrunc", "double", value, "float")
    return lanes.prelude(f"double_to_float_{rounding}", value)


def _cut_nan(lanes: WarpEmitter, target: PtxType, value: str) -> str:
    """The sign and the upper bits of a NaN in f64, made quiet, as on an H200; a NaN in f32 loses them."""
    fraction_bits, quiet = (7, 0x7FC0) if target.kind == "bf" else (10, 0x7E00)
    word = lanes.cast("bitcast", "double", value, "i64")
    sign = lanes.binary("and", "i64", lanes.binary("lshr", "i64", word, splat("i64", 48)), splat("i64", 0x8000))
    payload = lanes.binary("lshr", "i64", word, splat("i64", 52 - fraction_bits))
    payload = lanes.binary("and", "i64", payload, splat("i64", (1 << fraction_bits) - 1))
    pattern = lanes.binary("or", "i64", lanes.binary("or", "i64", sign, payload), splat("i64", quiet))
    return lanes.cast("trunc", "i64", pattern, "i16")


def _narrow(lanes: WarpEmitter, conversion: _Conversion, value: str, element: str) -> str:
    """`float` or `double` -> i16 of f16 or bf16: to nearest, then to the neighbour for a directed rounding."""
    target = conversion.target
    nan = cut = None
    if element == "double":
        nan, cut = lanes.compare("uno", "double", value, value), _cut_nan(lanes, target, value)
        value = lanes.prelude("double_to_float_odd", value)
    bits = from_float(lanes, target, value)
    if nan is not None and cut is not None:
        bits = lanes.select("i16", nan, cut, bits)
    if conversion.rounding in ("rz", "rm", "rp"):
        bits = _step_back(lanes, conversion.rounding, bits, to_float(lanes, target, bits), value)
    if conversion.finite:
        magnitude = lanes.binary("and", "i16", bits, splat("i16", 0x7FFF))
        infinite = lanes.compare("eq", "i16", magnitude, splat("i16", 0x7F80 if target.kind == "bf" else 0x7C00))
        bits = lanes.select("i16", infinite, lanes.binary("sub", "i16", bits, splat("i16", 1)), bits)
    return without_negatives(lanes, bits) if conversion.relu else bits


def _step_back(lanes: WarpEmitter, rounding: str, bits: str, near: str, exact: str) -> str:
    """Replace the nearest value by its neighbour if it lies on the wrong side of the exact value."""
    negative = lanes.compare("slt", "i16", bits, splat("i16", 0))
    above, below = lanes.compare("ogt", "float", near, exact), lanes.compare("olt", "float", near, exact)
    beyond = {"rm": above, "rp": below, "rz": lanes.select("i1", negative, below, above)}[rounding]
    inward = {"rm": splat("i16", -1), "rp": splat("i16", 1), "rz": splat("i16", -1)}[rounding]
    if rounding != "rz":
        # One step up in value is one step down in the magnitude of a negative number.
        inward = lanes.select("i16", negative, splat("i16", 1 if rounding == "rm" else -1), inward)
    return lanes.select("i16", beyond, lanes.binary("add", "i16", bits, inward), bits)


def _to_tf32(lanes: WarpEmitter, conversion: _Conversion, bits: str) -> str:
    """The upper 19 bits of an f32, rounded. NaN as on an H200: rna truncates it, other modes give one pattern."""
    added = {"rna": splat("i32", 0x1000), "rz": splat("i32", 0)}.get(str(conversion.rounding), splat("i32", 0xFFF))
    if conversion.rounding == "rn":
        odd = lanes.binary("and", "i32", lanes.binary("lshr", "i32", bits, splat("i32", 13)), splat("i32", 1))
        added = lanes.binary("add", "i32", added, odd)
    upper = splat("i32", -1 << 13)
    rounded = lanes.binary("and", "i32", lanes.binary("add", "i32", bits, added), upper)
    if conversion.relu:
        negative = lanes.compare("slt", "i32", bits, splat("i32", 0))
        rounded = lanes.select("i32", negative, splat("i32", 0), rounded)
    magnitude = lanes.binary("and", "i32", bits, splat("i32", 0x7FFFFFFF))
    nan = lanes.compare("ugt", "i32", magnitude, splat("i32", 0x7F800000))
    cut = lanes.binary("and", "i32", bits, upper) if conversion.rounding == "rna" else splat("i32", 0x7FFFE000)
    return lanes.select("i32", nan, cut, rounded)


def _float_to_integer(lanes: WarpEmitter, conversion: _Conversion, value: str, element: str) -> str:
    """Clamp an integral value to the target's range. NaN gives 0, or the top bit if 64 bits are involved."""
    target = conversion.target
    integer = INTEGER[target.bits]
    name = f"llvm.fpto{'s' if target.kind == 's' else 'u'}i.sat.v32{integer}.v32f{BITS[element]}"
    result = lanes.intrinsic(name, vector(integer), (vector(element), value))
    if 64 in (target.bits, BITS[element]):
        nan = lanes.compare("uno", element, value, value)
        result = lanes.select(integer, nan, splat(integer, 1 << (target.bits - 1)), result)
    return result


def _integer_to_integer(lanes: WarpEmitter, conversion: _Conversion, operand: Operand) -> str:
    """Extend by the source's sign, clamp if `.sat`, and truncate."""
    target, source = conversion.target, conversion.source
    narrow, wide = INTEGER[source.bits], INTEGER[max(target.bits, source.bits)]
    value = lanes.cast("sext" if source.kind == "s" else "zext", narrow, lanes.use(operand, narrow), wide)
    if conversion.sat:
        value = _clamp(lanes, value, wide, source, target)
    return lanes.cast("trunc", wide, value, INTEGER[target.bits])


def _clamp(lanes: WarpEmitter, value: str, wide: str, source: PtxType, target: PtxType) -> str:
    signed_target, signed_source = target.kind == "s", source.kind == "s"
    high = (1 << (target.bits - signed_target)) - 1
    low = -(1 << (target.bits - 1)) if signed_target else 0
    if signed_source:
        value = lanes.select(wide, lanes.compare("slt", wide, value, splat(wide, low)), splat(wide, low), value)
    if high < 1 << (BITS[wide] - signed_source):
        above = lanes.compare("sgt" if signed_source else "ugt", wide, value, splat(wide, high))
        value = lanes.select(wide, above, splat(wide, high), value)
    return value
