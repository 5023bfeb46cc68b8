"""mov, cvt and cvta (PTX ISA 9.7.9.1, .21, .20)."""

from __future__ import annotations

from harness.emulator.codegen.floating import saturate
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.halves import from_float, put_packed, to_float
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.table import emits
from harness.emulator.codegen.vocabulary import BITS, FLOAT, INTEGER, splat, splat_float, vector
from harness.emulator.machine import layout as at
from harness.emulator.ptx.instructions import Instruction, Operand, Symbol, Vector
from harness.emulator.ptx.types import PtxType

_ROUND_TO_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@emits("mov")
def mov(lanes: Lanes, instruction: Instruction) -> None:
    """mov: a register, a literal, an address; or packing and unpacking `{ }`."""
    form = Form(instruction)
    kind = form.type()
    form.end()
    destination, source = instruction.operands
    if isinstance(destination, Vector):
        _unpack(lanes, kind, destination.items, lanes.use(source, INTEGER[kind.bits]))
    elif isinstance(source, Vector):
        lanes.put(destination, _pack(lanes, kind, source.items), INTEGER[kind.bits])
    elif isinstance(source, Symbol):
        lanes.put(destination, lanes.use(source, "i64"), "i64")
    else:
        element = FLOAT[kind.bits] if kind.is_float and kind.bits > 16 else INTEGER[kind.total_bits]
        lanes.put(destination, lanes.use(source, element), element)


def _unpack(lanes: Lanes, kind: PtxType, items: tuple[Operand, ...], whole: str) -> None:
    element = INTEGER[kind.bits]
    part_bits = kind.bits // len(items)
    for index, item in enumerate(items):
        moved = lanes.binary("lshr", element, whole, splat(element, index * part_bits)) if index else whole
        lanes.put(item, lanes.cast("trunc", element, moved, INTEGER[part_bits]), INTEGER[part_bits])


def _pack(lanes: Lanes, kind: PtxType, items: tuple[Operand, ...]) -> str:
    element = INTEGER[kind.bits]
    part_bits = kind.bits // len(items)
    whole = splat(element, 0)
    for index, item in enumerate(items):
        part = lanes.cast("zext", INTEGER[part_bits], lanes.use(item, INTEGER[part_bits]), element)
        if index:
            part = lanes.binary("shl", element, part, splat(element, index * part_bits))
        whole = lanes.binary("or", element, whole, part)
    return whole


@emits("cvta")
def cvta(lanes: Lanes, instruction: Instruction) -> None:
    """Between a space's own addresses and generic ones."""
    form = Form(instruction)
    to_space = form.flag("to")
    space = form.choice("global", "shared", "shared::cta", "local", "const", "param")
    kind = form.type()
    form.end()
    element = INTEGER[kind.bits]
    value = lanes.use(instruction.operands[1], element)
    window = {"shared": at.SHARED_WINDOW, "shared::cta": at.SHARED_WINDOW, "local": at.LOCAL_WINDOW}.get(space or "")
    if space is None:
        raise instruction.unsupported()
    if window is not None:
        if element != "i64":
            raise instruction.unsupported("32-bit generic addresses")
        if to_space:
            value = lanes.binary("and", "i64", value, splat("i64", 0xFFFFFFFF))
        else:
            value = lanes.binary("or", "i64", value, splat("i64", window << at.WINDOW_BITS))
    lanes.put(instruction.operands[0], value, element)


@emits("isspacep")
def is_space(lanes: Lanes, instruction: Instruction) -> None:
    """Whether a generic address lies in a space."""
    form = Form(instruction)
    space = form.choice("global", "shared", "shared::cta", "local", "const", "param")
    form.end()
    address = lanes.use(instruction.operands[1], "i64")
    window = lanes.binary("lshr", "i64", address, splat("i64", at.WINDOW_BITS))
    if space in ("global", "const"):
        result = lanes.compare("uge", "i64", window, splat("i64", at.FIRST_VARIABLE_WINDOW))
    else:
        number = {"local": at.LOCAL_WINDOW, "param": at.PARAM_WINDOW}.get(space or "", at.SHARED_WINDOW)
        result = lanes.compare("eq", "i64", window, splat("i64", number))
    lanes.put(instruction.operands[0], result, "i1")


@emits("cvt")
def cvt(lanes: Lanes, instruction: Instruction) -> None:
    """Cvt between all integer and floating types."""
    form = Form(instruction)
    types = form.types()
    ftz, sat, relu = form.flag("ftz"), form.flag("sat"), form.flag("relu")
    finite = form.flag("satfinite")
    rounding = form.choice("rn", "rz", "rm", "rp", "rna", *_ROUND_TO_INTEGRAL)
    form.end()
    if len(types) != 2 or finite:
        raise instruction.unsupported()
    target, source = types
    if target.packed == 2:
        _cvt_pair(lanes, instruction, target, source, rounding, relu)
        return
    if relu:
        raise instruction.unsupported("modifier '.relu'")
    operand = instruction.operands[1]
    if source.is_float and target.is_float:
        _float_to_float(lanes, instruction, target, source, rounding, ftz, sat)
    elif source.is_float:
        value, element = _as_float(lanes, source, operand)
        if ftz and element == "float":
            value = lanes.flush(value)
        _put_integer(lanes, instruction, target, _to_integer(lanes, instruction, target, rounding, value, element))
    elif target.is_float:
        _integer_to_float(lanes, instruction, target, source, rounding, sat)
    else:
        _integer_to_integer(lanes, instruction, target, source, sat)


def _as_float(lanes: Lanes, kind: PtxType, operand: Operand) -> tuple[str, str]:
    """A float operand as `float` or `double`."""
    if kind.bits == 16:
        return to_float(lanes, kind, lanes.use(operand, "i16")), "float"
    return lanes.use(operand, FLOAT[kind.bits]), FLOAT[kind.bits]


def _narrow(lanes: Lanes, instruction: Instruction, target: PtxType, value: str, element: str, rounding: str) -> str:
    """`float` or `double` -> i16 of f16 or bf16."""
    if rounding not in ("rn", "rz"):
        raise instruction.unsupported(f"rounding '.{rounding}'")
    if element == "double":
        value = lanes.prelude("double_to_float_odd", value)
    if rounding == "rz":
        value = _cut_fraction(lanes, target, value)
    return from_float(lanes, target, value)


def _cut_fraction(lanes: Lanes, target: PtxType, value: str) -> str:
    """Towards zero: clear what the 16-bit format has no room for, unless the result is subnormal or special."""
    keep = 16 if target.kind == "bf" else 13
    bits = lanes.cast("bitcast", "float", value, "i32")
    cut = lanes.binary("and", "i32", bits, splat("i32", -1 << keep))
    nan = lanes.compare("uno", "float", value, value)
    cut = lanes.select("i32", nan, bits, cut)
    if target.kind == "f":
        magnitude = lanes.binary("and", "i32", bits, splat("i32", 0x7FFFFFFF))
        sign = lanes.binary("and", "i32", bits, splat("i32", 0x80000000))
        finite = lanes.compare("ult", "i32", magnitude, splat("i32", 0x7F800000))
        large = lanes.compare("ugt", "i32", magnitude, splat("i32", 0x477FE000))
        clamped = lanes.binary("or", "i32", sign, splat("i32", 0x477FE000))
        cut = lanes.select("i32", lanes.binary("and", "i1", finite, large), clamped, cut)
        # Below 2^-14 the format's step is 2^-24: truncate the multiple of it.
        scaled = lanes.binary("fmul", "float", value, splat_float("float", 2.0**24))
        whole = lanes.intrinsic("llvm.trunc.v32f32", vector("float"), (vector("float"), scaled))
        small = lanes.binary("fmul", "float", whole, splat_float("float", 2.0**-24))
        tiny = lanes.compare("ult", "i32", magnitude, splat("i32", 0x38800000))
        cut = lanes.select("i32", tiny, lanes.cast("bitcast", "float", small, "i32"), cut)
    return lanes.cast("bitcast", "i32", cut, "float")


def _cvt_pair(
    lanes: Lanes, instruction: Instruction, target: PtxType, source: PtxType, rounding: str | None, relu: bool
) -> None:
    """cvt.rn.f16x2.f32 d, a, b: a goes to the upper half."""
    if source.name != "f32":
        raise instruction.unsupported()
    destination, high, low = instruction.operands
    parts = []
    for operand in (low, high):
        value = lanes.use(operand, "float")
        if relu:
            zero = splat_float("float", 0.0)
            value = lanes.select("float", lanes.compare("ult", "float", value, zero), zero, value)
        parts.append(_narrow(lanes, instruction, target, value, "float", rounding or "rn"))
    put_packed(lanes, destination, target, parts)


def _float_to_float(
    lanes: Lanes, instruction: Instruction, target: PtxType, source: PtxType, rounding: str | None, ftz: bool, sat: bool
) -> None:
    value, element = _as_float(lanes, source, instruction.operands[1])
    if ftz and element == "float":
        value = lanes.flush(value)
    if rounding in _ROUND_TO_INTEGRAL:
        name = f"llvm.{_ROUND_TO_INTEGRAL[rounding]}.v32f{BITS[element]}"
        value = lanes.intrinsic(name, vector(element), (vector(element), value))
    if sat:
        value = saturate(lanes, element, value)
    destination = instruction.operands[0]
    if target.kind == "tf":
        if rounding != "rna":
            raise instruction.unsupported(f"rounding '.{rounding}'")
        lanes.put(destination, lanes.prelude("float_to_tf32", value), "float")
    elif target.bits == 16:
        exact = rounding in _ROUND_TO_INTEGRAL or rounding is None
        bits = _narrow(lanes, instruction, target, value, element, "rn" if exact else str(rounding))
        lanes.put(destination, bits, "i16")
    elif element == "double" and target.bits == 32:
        if rounding in (None, "rn", *_ROUND_TO_INTEGRAL):
            value = lanes.cast("fptrunc", "double", value, "float")
        else:
            value = lanes.prelude(f"double_to_float_{rounding}", value)
        lanes.put(destination, lanes.flush(value) if ftz else value, "float")
    else:
        lanes.put(destination, lanes.cast("fpext", element, value, FLOAT[target.bits]), FLOAT[target.bits])


def _to_integer(
    lanes: Lanes, instruction: Instruction, target: PtxType, rounding: str | None, value: str, element: str
) -> str:
    """Round to integral, clamp to the target's range; NaN becomes 0."""
    if rounding not in _ROUND_TO_INTEGRAL:
        raise instruction.unsupported("it needs a rounding to integers")
    kind = vector(element)
    integral = lanes.intrinsic(f"llvm.{_ROUND_TO_INTEGRAL[rounding]}.v32f{BITS[element]}", kind, (kind, value))
    integer = INTEGER[target.bits]
    signed = "s" if target.kind == "s" else "u"
    name = f"llvm.fpto{signed}i.sat.v32{integer}.v32f{BITS[element]}"
    return lanes.intrinsic(name, vector(integer), (kind, integral))


def _put_integer(lanes: Lanes, instruction: Instruction, target: PtxType, value: str) -> None:
    lanes.put(instruction.operands[0], value, INTEGER[target.bits], signed=target.kind == "s")


def _integer_to_float(
    lanes: Lanes, instruction: Instruction, target: PtxType, source: PtxType, rounding: str | None, sat: bool
) -> None:
    integer = INTEGER[source.bits]
    value = lanes.use(instruction.operands[1], integer)
    word = "sitofp" if source.kind == "s" else "uitofp"
    destination = instruction.operands[0]
    exact_in_double = source.bits <= 32
    if target.bits == 16 or rounding not in (None, "rn"):
        if not exact_in_double:
            raise instruction.unsupported()
        wide = lanes.cast(word, integer, value, "double")
        if target.bits == 16:
            lanes.put(destination, _narrow(lanes, instruction, target, wide, "double", rounding or "rn"), "i16")
            return
        result = wide if target.bits == 64 else lanes.prelude(f"double_to_float_{rounding}", wide)
    else:
        result = lanes.cast(word, integer, value, FLOAT[target.bits])
    if sat:
        result = saturate(lanes, FLOAT[target.bits], result)
    lanes.put(destination, result, FLOAT[target.bits])


def _integer_to_integer(lanes: Lanes, instruction: Instruction, target: PtxType, source: PtxType, sat: bool) -> None:
    narrow, wide = INTEGER[source.bits], INTEGER[max(target.bits, source.bits)]
    value = lanes.use(instruction.operands[1], narrow)
    value = lanes.cast("sext" if source.kind == "s" else "zext", narrow, value, wide)
    if sat:
        value = _clamp(lanes, value, wide, source, target)
    _put_integer(lanes, instruction, target, lanes.cast("trunc", wide, value, INTEGER[target.bits]))


def _clamp(lanes: Lanes, value: str, wide: str, source: PtxType, target: PtxType) -> str:
    signed_target = target.kind == "s"
    high = (1 << (target.bits - signed_target)) - 1
    low = -(1 << (target.bits - 1)) if signed_target else 0
    prefix = "s" if source.kind == "s" else "u"
    if source.kind == "s" and (BITS[wide] > target.bits or signed_target or low == 0):
        value = lanes.select(wide, lanes.compare("slt", wide, value, splat(wide, low)), splat(wide, low), value)
    if high < (1 << (BITS[wide] - (source.kind == "s"))):
        value = lanes.select(
            wide, lanes.compare(f"{prefix}gt", wide, value, splat(wide, high)), splat(wide, high), value
        )
    return value
