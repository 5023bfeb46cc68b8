"""Emits integer arithmetic (PTX ISA 9.7.1) and arithmetic with the carry flag (9.7.2)."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.halves import put_packed, unpack
from harness.emulator.codegen.vector_ir_builder import BITS, INTEGER, splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import CARRY, Instruction, Operand, Reg
from harness.ptx.types import PtxType

__all__ = ["CARRY"]

_WIDER = {"i16": "i32", "i32": "i64", "i64": "i128"}
_ANY = "u16 s16 u32 s32 u64 s64"
_SIGNED = "s16 s32 s64"
_WITH_CARRY = "u32 s32 u64 s64"
_PAIRS = "u16x2 s16x2"


def _add_saturated(lanes: WarpEmitter, word: str, element: str, a: str, b: str) -> str:
    kind = vector(element)
    return lanes.intrinsic(f"llvm.s{word}.sat.v32{element}", kind, (kind, a), (kind, b))


@emits("add.int", "sub.int")
def add_sub(lanes: WarpEmitter, instruction: Instruction) -> None:
    """add, sub; `.sat` clamps s32; `.cc` sets the carry."""
    form = Form(instruction)
    word = instruction.opcode
    carry_out, saturate = form.flag("cc"), form.flag("sat")
    allowed = "s32" if saturate else _WITH_CARRY if carry_out else f"{_ANY} {_PAIRS}" if word == "add" else _ANY
    kind = form.type(allowed)
    form.end()
    element = INTEGER[kind.bits]
    destination, a, b = instruction.operands
    results = []
    for x, y in zip(unpack(lanes, a, kind), unpack(lanes, b, kind)):
        add = _add_saturated if saturate else WarpEmitter.binary
        results.append(add(lanes, word, element, x, y))
        if carry_out:
            carry = lanes.compare("ult", element, *((results[0], x) if word == "add" else (x, y)))
            lanes.put(Reg(CARRY), carry, "i1")
    put_packed(lanes, destination, kind, results)


@emits("addc", "subc")
def add_sub_with_carry(lanes: WarpEmitter, instruction: Instruction) -> None:
    """addc, subc{.cc}: add the carry flag, and set it with `.cc`."""
    form = Form(instruction)
    carry_out = form.flag("cc")
    element = INTEGER[form.type(_WITH_CARRY).bits]
    form.end()
    destination, a, b = instruction.operands
    x, y = lanes.use(a, element), lanes.use(b, element)
    carry = lanes.cast("zext", "i1", lanes.use(Reg(CARRY), "i1"), element)
    word = "add" if instruction.opcode == "addc" else "sub"
    partial = lanes.binary(word, element, x, y)
    result = lanes.binary(word, element, partial, carry)
    if carry_out:
        if word == "add":
            first, second = lanes.compare("ult", element, partial, x), lanes.compare("ult", element, result, partial)
        else:
            first, second = lanes.compare("ult", element, x, y), lanes.compare("ult", element, partial, carry)
        lanes.put(Reg(CARRY), lanes.binary("or", "i1", first, second), "i1")
    lanes.put(destination, result, element)


def _wide_product(lanes: WarpEmitter, kind: PtxType, element: str, a: Operand, b: Operand) -> tuple[str, str]:
    """The full product and its element type."""
    wide = _WIDER[element]
    extend = "sext" if kind.kind == "s" else "zext"
    x = lanes.cast(extend, element, lanes.use(a, element), wide)
    y = lanes.cast(extend, element, lanes.use(b, element), wide)
    return lanes.binary("mul", wide, x, y), wide


def _product(lanes: WarpEmitter, instruction: Instruction, form: Form, kind: PtxType, element: str) -> tuple[str, str]:
    """`.lo`, `.hi` or `.wide` product of operands 1 and 2, and its element type."""
    part = form.choice("lo", "hi", "wide")
    a, b = instruction.operands[1:3]
    if part == "lo":
        return lanes.binary("mul", element, lanes.use(a, element), lanes.use(b, element)), element
    if part == "wide" and element != "i64":
        return _wide_product(lanes, kind, element, a, b)
    if part == "hi":
        product, wide = _wide_product(lanes, kind, element, a, b)
        shift = f"splat ({wide} {BITS[element]})"
        return lanes.cast("trunc", wide, lanes.binary("lshr", wide, product, shift), element), element
    raise instruction.unsupported("it needs '.lo', '.hi' or '.wide'")


@emits("mul.int")
@emits("mad.int")
def mul_mad(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Emit mul and mad, low, high or wide; `mad.hi.sat.s32` clamps; `.cc` sets the carry of the addition."""
    form = Form(instruction)
    is_mad = instruction.opcode == "mad"
    carry_out, saturate = is_mad and form.flag("cc"), is_mad and form.flag("sat")
    kind = form.type("s32" if saturate else _WITH_CARRY if carry_out else _ANY)
    if (saturate and "hi" not in instruction.modifiers) or (carry_out and "wide" in instruction.modifiers):
        raise instruction.unsupported()
    result, wide = _product(lanes, instruction, form, kind, INTEGER[kind.bits])
    form.end()
    if is_mad:
        c = lanes.use(instruction.operands[3], wide)
        product = result
        add = _add_saturated if saturate else WarpEmitter.binary
        result = add(lanes, "add", wide, product, c)
        if carry_out:
            lanes.put(Reg(CARRY), lanes.compare("ult", wide, result, product), "i1")
    lanes.put(instruction.operands[0], result, wide, signed=kind.kind == "s")


@emits("madc")
def mad_with_carry(lanes: WarpEmitter, instruction: Instruction) -> None:
    """madc{.cc}: product + c + carry."""
    form = Form(instruction)
    carry_out = form.flag("cc")
    kind = form.type(_WITH_CARRY)
    if "wide" in instruction.modifiers:
        raise instruction.unsupported()
    product, element = _product(lanes, instruction, form, kind, INTEGER[kind.bits])
    form.end()
    carry = lanes.cast("zext", "i1", lanes.use(Reg(CARRY), "i1"), element)
    partial = lanes.binary("add", element, product, lanes.use(instruction.operands[3], element))
    result = lanes.binary("add", element, partial, carry)
    if carry_out:
        first, second = lanes.compare("ult", element, partial, product), lanes.compare("ult", element, result, partial)
        lanes.put(Reg(CARRY), lanes.binary("or", "i1", first, second), "i1")
    lanes.put(instruction.operands[0], result, element)


@emits("mul24")
@emits("mad24")
def mul24(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mul24, mad24: product of the low 24 bits; its bits 0 to 31, or 16 to 47."""
    form = Form(instruction)
    kind = form.type("u32 s32")
    part = form.choice("lo", "hi")
    form.end()
    if part is None:
        raise instruction.unsupported("it needs '.lo' or '.hi'")
    wide = []
    for operand in instruction.operands[1:3]:
        top = lanes.binary("shl", "i32", lanes.use(operand, "i32"), splat("i32", 8))
        low = lanes.binary("ashr" if kind.kind == "s" else "lshr", "i32", top, splat("i32", 8))
        wide.append(lanes.cast("sext" if kind.kind == "s" else "zext", "i32", low, "i64"))
    product = lanes.binary("mul", "i64", *wide)
    if part == "hi":
        product = lanes.binary("lshr", "i64", product, splat("i64", 16))
    result = lanes.cast("trunc", "i64", product, "i32")
    if instruction.opcode == "mad24":
        result = lanes.binary("add", "i32", result, lanes.use(instruction.operands[3], "i32"))
    lanes.put(instruction.operands[0], result, "i32")


@emits("div.int", "rem.int")
def div_rem(lanes: WarpEmitter, instruction: Instruction) -> None:
    """div, rem without traps: division by zero gives all ones, as on an H200, and the smallest integer / -1 wraps."""
    form = Form(instruction)
    kind = form.type(_ANY)
    form.end()
    element = INTEGER[kind.bits]
    destination, a, b = instruction.operands
    x, y = lanes.use(a, element), lanes.use(b, element)
    signed = kind.kind == "s"
    zero = lanes.compare("eq", element, y, splat(element, 0))
    unsafe = zero
    if signed:
        minus_one = lanes.compare("eq", element, y, splat(element, -1))
        unsafe = lanes.binary("or", "i1", zero, minus_one)
    safe = lanes.select(element, unsafe, splat(element, 1), y)
    division = instruction.opcode == "div"
    result = lanes.binary(("s" if signed else "u") + instruction.opcode, element, x, safe)
    if signed:
        negated = lanes.binary("sub", element, splat(element, 0), x)
        result = lanes.select(element, minus_one, negated if division else splat(element, 0), result)
    result = lanes.select(element, zero, splat(element, -1), result)
    lanes.put(destination, result, element)


@emits("abs.int", "neg.int")
def abs_neg(lanes: WarpEmitter, instruction: Instruction) -> None:
    """abs, neg: the smallest integer is unchanged."""
    form = Form(instruction)
    element = INTEGER[form.type(_SIGNED).bits]
    form.end()
    x = lanes.use(instruction.operands[1], element)
    result = lanes.binary("sub", element, splat(element, 0), x)
    if instruction.opcode == "abs":
        result = lanes.select(element, lanes.compare("slt", element, x, splat(element, 0)), result, x)
    lanes.put(instruction.operands[0], result, element)


@emits("min.int", "max.int")
def min_max(lanes: WarpEmitter, instruction: Instruction) -> None:
    """min, max; `.relu` replaces negative results by 0."""
    form = Form(instruction)
    relu = form.flag("relu")
    kind = form.type("s32 s16x2" if relu else f"{_ANY} {_PAIRS}")
    form.end()
    element, zero = INTEGER[kind.bits], splat(INTEGER[kind.bits], 0)
    order = ("s" if kind.kind == "s" else "u") + ("lt" if instruction.opcode == "min" else "gt")
    destination, a, b = instruction.operands
    results = []
    for x, y in zip(unpack(lanes, a, kind), unpack(lanes, b, kind)):
        result = lanes.select(element, lanes.compare(order, element, x, y), x, y)
        if relu:
            result = lanes.select(element, lanes.compare("slt", element, result, zero), zero, result)
        results.append(result)
    put_packed(lanes, destination, kind, results)


@emits("sad")
def sad(lanes: WarpEmitter, instruction: Instruction) -> None:
    """sad: |a - b| + c."""
    form = Form(instruction)
    kind = form.type(_ANY)
    form.end()
    element = INTEGER[kind.bits]
    x, y, z = (lanes.use(o, element) for o in instruction.operands[1:])
    less = lanes.compare("slt" if kind.kind == "s" else "ult", element, x, y)
    forward, backward = lanes.binary("sub", element, x, y), lanes.binary("sub", element, y, x)
    distance = lanes.select(element, less, backward, forward)
    lanes.put(instruction.operands[0], lanes.binary("add", element, distance, z), element)


@emits("dp4a", "dp2a")
def dot_product(lanes: WarpEmitter, instruction: Instruction) -> None:
    """dp4a, dp2a: four products of bytes, or two of halfwords with bytes, added to c."""
    form = Form(instruction)
    kinds = form.types()
    part = form.choice("lo", "hi") if instruction.opcode == "dp2a" else None
    form.end()
    if [k.bits for k in kinds] != [32, 32] or any(k.kind not in "us" for k in kinds):
        raise instruction.unsupported()
    if instruction.opcode == "dp2a" and part is None:
        raise instruction.unsupported("it needs '.lo' or '.hi'")
    a, b, c = (lanes.use(o, "i32") for o in instruction.operands[1:])
    result = c
    terms = 4 if instruction.opcode == "dp4a" else 2
    width = 32 // terms
    for term in range(terms):
        first = 8 * term if terms == 4 else 8 * (term + (2 if part == "hi" else 0))
        x = _piece(lanes, a, width * term, width, kinds[0].kind == "s")
        y = _piece(lanes, b, first, 8, kinds[1].kind == "s")
        result = lanes.binary("add", "i32", result, lanes.binary("mul", "i32", x, y))
    lanes.put(instruction.operands[0], result, "i32")


def _piece(lanes: WarpEmitter, word: str, start: int, width: int, signed: bool) -> str:
    top = lanes.binary("shl", "i32", word, splat("i32", 32 - start - width))
    return lanes.binary("ashr" if signed else "lshr", "i32", top, splat("i32", 32 - width))
