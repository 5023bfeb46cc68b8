"""Emits logic, shifts and bit fields (PTX ISA 9.7.1.13 ff. and 9.7.8)."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.vector_ir_builder import BITS, INTEGER, splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Imm, Instruction, Operand, Pair

_UNTYPED = "b16 b32 b64"
_WORDS = "u32 s32 u64 s64"
_WIDER = {"i32": "i64", "i64": "i128"}


def _element(instruction: Instruction, allowed: str) -> tuple[str, str]:
    form = Form(instruction)
    kind = form.type(allowed)
    form.end()
    return INTEGER[kind.bits], kind.kind


@emits("and", "or", "xor")
def logic(lanes: WarpEmitter, instruction: Instruction) -> None:
    """and, or, xor, also on predicates."""
    element, _ = _element(instruction, f"pred {_UNTYPED}")
    destination, a, b = instruction.operands
    result = lanes.binary(instruction.opcode, element, lanes.use(a, element), lanes.use(b, element))
    lanes.put(destination, result, element)


@emits("not", "cnot")
def complement(lanes: WarpEmitter, instruction: Instruction) -> None:
    """not; cnot is 1 for zero and 0 otherwise."""
    element, _ = _element(instruction, f"pred {_UNTYPED}" if instruction.opcode == "not" else _UNTYPED)
    x = lanes.use(instruction.operands[1], element)
    if instruction.opcode == "not":
        result = lanes.binary("xor", element, x, splat(element, -1))
    else:
        result = lanes.cast("zext", "i1", lanes.compare("eq", element, x, splat(element, 0)), element)
    lanes.put(instruction.operands[0], result, element)


@emits("lop3")
def lop3(lanes: WarpEmitter, instruction: Instruction) -> None:
    """lop3: any function of three bits, given by its truth table; d|p: p = (d != 0) and, or q."""
    form = Form(instruction)
    boolean = form.choice("and", "or")
    form.type("b32")
    form.end()
    destination, a, b, c, table, *rest = instruction.operands
    if not isinstance(table, Imm) or (boolean is not None) != bool(rest) or bool(rest) != isinstance(destination, Pair):
        raise instruction.unsupported()
    values = [lanes.use(s, "i32") for s in (a, b, c)]
    inverted = [lanes.binary("xor", "i32", value, splat("i32", -1)) for value in values]
    result = splat("i32", 0)
    for row in range(8):
        if not table.value >> row & 1:
            continue
        picks = [values[i] if row >> (2 - i) & 1 else inverted[i] for i in range(3)]
        term = lanes.binary("and", "i32", lanes.binary("and", "i32", picks[0], picks[1]), picks[2])
        result = lanes.binary("or", "i32", result, term)
    if boolean is not None and isinstance(destination, Pair):
        some = lanes.compare("ne", "i32", result, splat("i32", 0))
        predicate = lanes.binary(boolean, "i1", some, lanes.use(rest[0], "i1"))
        lanes.put(destination.first, result, "i32")
        lanes.put(destination.second, predicate, "i1")
    else:
        lanes.put(destination, result, "i32")


@emits("shl", "shr")
def shift(lanes: WarpEmitter, instruction: Instruction) -> None:
    """shl, shr: amounts beyond the width give 0, or the sign."""
    allowed = _UNTYPED if instruction.opcode == "shl" else f"{_UNTYPED} u16 s16 {_WORDS}"
    element, kind = _element(instruction, allowed)
    bits = BITS[element]
    destination, a, b = instruction.operands
    x = lanes.use(a, element)
    amount = lanes.use(b, "i32")
    too_far = lanes.compare("ugt", "i32", amount, splat("i32", bits - 1))
    clamped = lanes.select("i32", too_far, splat("i32", bits - 1), amount)
    by = lanes.cast("zext" if bits > 32 else "trunc", "i32", clamped, element)
    word = "shl" if instruction.opcode == "shl" else "ashr" if kind == "s" else "lshr"
    result = lanes.binary(word, element, x, by)
    if word != "ashr":
        result = lanes.select(element, too_far, splat(element, 0), result)
    lanes.put(destination, result, element)


@emits("shf")
def funnel_shift(lanes: WarpEmitter, instruction: Instruction) -> None:
    """shf: shift of the 64 bits {b, a}; the high half for left shifts, the low half for right shifts."""
    form = Form(instruction)
    direction, mode = form.choice("l", "r"), form.choice("wrap", "clamp")
    form.type("b32")
    form.end()
    if direction is None or mode is None:
        raise instruction.unsupported()
    destination, a, b, c = instruction.operands
    amount = lanes.use(c, "i32")
    if mode == "wrap":
        amount = lanes.binary("and", "i32", amount, splat("i32", 31))
    else:
        above = lanes.compare("ugt", "i32", amount, splat("i32", 32))
        amount = lanes.select("i32", above, splat("i32", 32), amount)
    low, high = (lanes.cast("zext", "i32", lanes.use(o, "i32"), "i64") for o in (a, b))
    both = lanes.binary("or", "i64", low, lanes.binary("shl", "i64", high, splat("i64", 32)))
    by = lanes.cast("zext", "i32", amount, "i64")
    if direction == "l":
        moved = lanes.binary("lshr", "i64", lanes.binary("shl", "i64", both, by), splat("i64", 32))
    else:
        moved = lanes.binary("lshr", "i64", both, by)
    lanes.put(destination, lanes.cast("trunc", "i64", moved, "i32"), "i32")


_SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""The default-mode selector that is equivalent to each special mode, by the two low bits of c."""


@emits("prmt")
def permute_bytes(lanes: WarpEmitter, instruction: Instruction) -> None:
    """prmt: four bytes out of eight; special modes use a table of selectors."""
    form = Form(instruction)
    mode = form.choice(*_SELECTORS)
    form.type("b32")
    form.end()
    destination, a, b, c = instruction.operands
    selector = lanes.use(c, "i32")
    if mode is not None:
        table = sum(entry << 16 * index for index, entry in enumerate(_SELECTORS[mode]))
        place = lanes.binary("shl", "i32", lanes.binary("and", "i32", selector, splat("i32", 3)), splat("i32", 4))
        entry = lanes.binary("lshr", "i64", splat("i64", table), lanes.cast("zext", "i32", place, "i64"))
        selector = lanes.cast("trunc", "i64", entry, "i32")
    lanes.put(destination, lanes.prelude("permute_bytes", lanes.use(a, "i32"), lanes.use(b, "i32"), selector), "i32")


@emits("popc", "clz", "brev")
def count(lanes: WarpEmitter, instruction: Instruction) -> None:
    """popc, clz, brev."""
    element, _ = _element(instruction, "b32 b64")
    destination, a = instruction.operands
    x, kind = lanes.use(a, element), vector(element)
    if instruction.opcode == "brev":
        result = lanes.intrinsic(f"llvm.bitreverse.v32{element}", kind, (kind, x))
        lanes.put(destination, result, element)
        return
    if instruction.opcode == "popc":
        result = lanes.intrinsic(f"llvm.ctpop.v32{element}", kind, (kind, x))
    else:
        result = lanes.intrinsic(f"llvm.ctlz.v32{element}", kind, (kind, x), ("i1", "false"))
    lanes.put(destination, lanes.cast("trunc", element, result, "i32"), "i32")


@emits("bfind")
def find_leading(lanes: WarpEmitter, instruction: Instruction) -> None:
    """bfind: position of the most significant bit that is not a sign bit; all ones if there is none."""
    form = Form(instruction)
    kind, amount = form.type(_WORDS), form.flag("shiftamt")
    form.end()
    element = INTEGER[kind.bits]
    x = lanes.use(instruction.operands[1], element)
    if kind.kind == "s":
        negative = lanes.compare("slt", element, x, splat(element, 0))
        x = lanes.select(element, negative, lanes.binary("xor", element, x, splat(element, -1)), x)
    zeros = lanes.intrinsic(f"llvm.ctlz.v32{element}", vector(element), (vector(element), x), ("i1", "false"))
    place = zeros if amount else lanes.binary("sub", element, splat(element, kind.bits - 1), zeros)
    none = lanes.compare("eq", element, x, splat(element, 0))
    place = lanes.select(element, none, splat(element, -1), place)
    lanes.put(instruction.operands[0], lanes.cast("trunc", element, place, "i32"), "i32")


def _low_byte(lanes: WarpEmitter, operand: Operand, limit: int, element: str) -> str:
    """The operand's low 8 bits, at most `limit`."""
    value = lanes.binary("and", "i32", lanes.use(operand, "i32"), splat("i32", 0xFF))
    above = lanes.compare("ugt", "i32", value, splat("i32", limit))
    return lanes.cast("zext", "i32", lanes.select("i32", above, splat("i32", limit), value), element)


@emits("bfe")
def extract_field(lanes: WarpEmitter, instruction: Instruction) -> None:
    """bfe: `length` bits from `start`, extended by zeros, or by the field's highest existing bit."""
    element, kind = _element(instruction, _WORDS)
    destination, a, b, c = instruction.operands
    # Computed in twice the width, so that no bit is lost: x is extended, shifted down, then cut to `length` by two
    # shifts.
    wide = _WIDER[element]
    right, extend = ("ashr", "sext") if kind == "s" else ("lshr", "zext")
    start, length = (_low_byte(lanes, o, BITS[element], wide) for o in (b, c))
    moved = lanes.binary(right, wide, lanes.cast(extend, element, lanes.use(a, element), wide), start)
    empty = lanes.compare("eq", wide, length, splat(wide, 0))
    cut = lanes.select(wide, empty, splat(wide, 0), lanes.binary("sub", wide, splat(wide, BITS[wide]), length))
    field = lanes.binary(right, wide, lanes.binary("shl", wide, moved, cut), cut)
    lanes.put(
        destination, lanes.select(element, empty, splat(element, 0), lanes.cast("trunc", wide, field, element)), element
    )


@emits("bfi")
def insert_field(lanes: WarpEmitter, instruction: Instruction) -> None:
    """bfi: the low `length` bits of a, inserted at `start` in b."""
    element, _ = _element(instruction, "b32 b64")
    destination, a, b, c, d = instruction.operands
    x, y, wide = lanes.use(a, element), lanes.use(b, element), _WIDER[element]
    start, length = (_low_byte(lanes, o, BITS[element], wide) for o in (c, d))
    ones = lanes.binary("sub", wide, lanes.binary("shl", wide, splat(wide, 1), length), splat(wide, 1))
    mask = lanes.cast("trunc", wide, lanes.binary("shl", wide, ones, start), element)
    moved = lanes.binary("shl", wide, lanes.cast("zext", element, x, wide), start)
    field = lanes.binary("and", element, lanes.cast("trunc", wide, moved, element), mask)
    rest = lanes.binary("and", element, y, lanes.binary("xor", element, mask, splat(element, -1)))
    lanes.put(destination, lanes.binary("or", element, field, rest), element)


@emits("szext")
def extend_bits(lanes: WarpEmitter, instruction: Instruction) -> None:
    """szext: the low `b` bits of a, extended by their sign or by zeros; 32 and more bits clamp or wrap."""
    form = Form(instruction)
    mode = form.choice("clamp", "wrap")
    kind = form.type("u32 s32")
    form.end()
    if mode is None:
        raise instruction.unsupported("it needs '.clamp' or '.wrap'")
    x, count = (lanes.use(o, "i32") for o in instruction.operands[1:])
    wrapped = lanes.binary("and", "i32", count, splat("i32", 31))
    cut = lanes.binary("and", "i32", lanes.binary("sub", "i32", splat("i32", 32), wrapped), splat("i32", 31))
    right = "ashr" if kind.kind == "s" else "lshr"
    result = lanes.binary(right, "i32", lanes.binary("shl", "i32", x, cut), cut)
    result = lanes.select("i32", lanes.compare("eq", "i32", wrapped, splat("i32", 0)), splat("i32", 0), result)
    if mode == "clamp":
        result = lanes.select("i32", lanes.compare("ugt", "i32", count, splat("i32", 31)), x, result)
    lanes.put(instruction.operands[0], result, "i32")


@emits("bmsk")
def bit_mask(lanes: WarpEmitter, instruction: Instruction) -> None:
    """bmsk: `length` ones from `start`."""
    form = Form(instruction)
    mode = form.choice("clamp", "wrap")
    form.type("b32")
    form.end()
    if mode is None:
        raise instruction.unsupported()
    start, length = (lanes.use(o, "i32") for o in instruction.operands[1:])
    if mode == "wrap":
        start, length = (lanes.binary("and", "i32", v, splat("i32", 31)) for v in (start, length))
    else:
        start, length = (
            lanes.select("i32", lanes.compare("ugt", "i32", v, splat("i32", 32)), splat("i32", 32), v)
            for v in (start, length)
        )
    start, length = (lanes.cast("zext", "i32", v, "i64") for v in (start, length))
    ones = lanes.binary("sub", "i64", lanes.binary("shl", "i64", splat("i64", 1), length), splat("i64", 1))
    result = lanes.cast("trunc", "i64", lanes.binary("shl", "i64", ones, start), "i32")
    lanes.put(instruction.operands[0], result, "i32")
