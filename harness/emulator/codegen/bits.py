"""Logic, shifts and bit fields (PTX ISA 9.7.1.13 ff. and 9.7.8)."""

from __future__ import annotations

from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.table import emits
from harness.emulator.codegen.vocabulary import BITS, INTEGER, splat, vector
from harness.emulator.ptx.instructions import Imm, Instruction


def _element(instruction: Instruction) -> tuple[str, str]:
    form = Form(instruction)
    kind = form.type()
    form.end()
    return INTEGER[kind.bits], kind.kind


@emits("and", "or", "xor")
def logic(lanes: Lanes, instruction: Instruction) -> None:
    """and, or, xor, on predicates too."""
    element, _ = _element(instruction)
    destination, a, b = instruction.operands
    result = lanes.binary(instruction.opcode, element, lanes.use(a, element), lanes.use(b, element))
    lanes.put(destination, result, element)


@emits("not", "cnot")
def complement(lanes: Lanes, instruction: Instruction) -> None:
    """not; cnot is 1 for zero and 0 otherwise."""
    element, _ = _element(instruction)
    x = lanes.use(instruction.operands[1], element)
    if instruction.opcode == "not":
        result = lanes.binary("xor", element, x, splat(element, -1))
    else:
        result = lanes.cast("zext", "i1", lanes.compare("eq", element, x, splat(element, 0)), element)
    lanes.put(instruction.operands[0], result, element)


@emits("lop3")
def lop3(lanes: Lanes, instruction: Instruction) -> None:
    """Any function of three bits, by its table of eight answers."""
    form = Form(instruction)
    form.type()
    form.end()
    destination, *sources, table = instruction.operands
    if not isinstance(table, Imm) or len(sources) != 3:
        raise instruction.unsupported()
    values = [lanes.use(s, "i32") for s in sources]
    inverted = [lanes.binary("xor", "i32", value, splat("i32", -1)) for value in values]
    result = splat("i32", 0)
    for row in range(8):
        if not table.value >> row & 1:
            continue
        picks = [values[i] if row >> (2 - i) & 1 else inverted[i] for i in range(3)]
        term = lanes.binary("and", "i32", lanes.binary("and", "i32", picks[0], picks[1]), picks[2])
        result = lanes.binary("or", "i32", result, term)
    lanes.put(destination, result, "i32")


@emits("shl", "shr")
def shift(lanes: Lanes, instruction: Instruction) -> None:
    """Shifts; amounts beyond the width give 0, or the sign."""
    element, kind = _element(instruction)
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
def funnel_shift(lanes: Lanes, instruction: Instruction) -> None:
    """Shift of the 64 bits {b, a}: the high half to the left, the low half to the right."""
    form = Form(instruction)
    direction, mode = form.choice("l", "r"), form.choice("wrap", "clamp")
    form.type()
    form.end()
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


@emits("prmt")
def permute_bytes(lanes: Lanes, instruction: Instruction) -> None:
    """Prmt in its default mode."""
    form = Form(instruction)
    form.type()
    form.end()
    destination, *sources = instruction.operands
    lanes.put(destination, lanes.prelude("permute_bytes", *(lanes.use(s, "i32") for s in sources)), "i32")


@emits("popc", "clz", "brev")
def count(lanes: Lanes, instruction: Instruction) -> None:
    """popc, clz, brev."""
    element, _ = _element(instruction)
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
def find_leading(lanes: Lanes, instruction: Instruction) -> None:
    """Place of the most significant bit that is not a sign bit; all ones if there is none."""
    form = Form(instruction)
    kind, amount = form.type(), form.flag("shiftamt")
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


@emits("bfe")
def extract_field(lanes: Lanes, instruction: Instruction) -> None:
    """bfe: `length` bits from `start`, extended by zero, or by the field's highest bit that exists."""
    element, kind = _element(instruction)
    bits = BITS[element]
    destination, a, b, c = instruction.operands
    x = lanes.use(a, element)
    start, length = (
        lanes.cast("zext", "i32", lanes.binary("and", "i32", lanes.use(o, "i32"), splat("i32", 0xFF)), "i64")
        for o in (b, c)
    )
    # In 64 + 64 bits nothing falls off: x, extended, shifted down, then cut to `length` by two shifts.
    wide = "i128"
    value = lanes.cast("sext" if kind == "s" else "zext", element, x, wide)
    limit = splat("i64", bits)
    start = lanes.select("i64", lanes.compare("ugt", "i64", start, limit), limit, start)
    length = lanes.select("i64", lanes.compare("ugt", "i64", length, limit), limit, length)
    moved = lanes.binary("ashr" if kind == "s" else "lshr", wide, value, lanes.cast("zext", "i64", start, wide))
    cut = lanes.cast("zext", "i64", lanes.binary("sub", "i64", splat("i64", 127), length), wide)
    cut = lanes.binary("add", wide, cut, f"splat ({wide} 1)")
    empty = lanes.compare("eq", "i64", length, splat("i64", 0))
    safe = lanes.select(wide, empty, f"splat ({wide} 0)", cut)
    raised = lanes.binary("shl", wide, moved, safe)
    lowered = lanes.binary("ashr" if kind == "s" else "lshr", wide, raised, safe)
    result = lanes.select(element, empty, splat(element, 0), lanes.cast("trunc", wide, lowered, element))
    lanes.put(destination, result, element)


@emits("bfi")
def insert_field(lanes: Lanes, instruction: Instruction) -> None:
    """bfi: the low `length` bits of a, placed at `start` in b."""
    element, _ = _element(instruction)
    bits = BITS[element]
    destination, a, b, c, d = instruction.operands
    x, y = lanes.use(a, element), lanes.use(b, element)
    start, length = (
        lanes.cast("zext", "i32", lanes.binary("and", "i32", lanes.use(o, "i32"), splat("i32", 0xFF)), "i128")
        for o in (c, d)
    )
    limit, one = f"splat (i128 {bits})", "splat (i128 1)"
    start = lanes.select("i128", lanes.compare("ugt", "i128", start, limit), limit, start)
    length = lanes.select("i128", lanes.compare("ugt", "i128", length, limit), limit, length)
    ones = lanes.binary("sub", "i128", lanes.binary("shl", "i128", one, length), one)
    mask = lanes.cast("trunc", "i128", lanes.binary("shl", "i128", ones, start), element)
    moved = lanes.binary("shl", "i128", lanes.cast("zext", element, x, "i128"), start)
    field = lanes.binary("and", element, lanes.cast("trunc", "i128", moved, element), mask)
    rest = lanes.binary("and", element, y, lanes.binary("xor", element, mask, splat(element, -1)))
    lanes.put(destination, lanes.binary("or", element, field, rest), element)


@emits("bmsk")
def bit_mask(lanes: Lanes, instruction: Instruction) -> None:
    """bmsk: `length` ones from `start`."""
    form = Form(instruction)
    mode = form.choice("clamp", "wrap")
    form.type()
    form.end()
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
