"""Emits video instructions on bytes, halfwords and words (PTX ISA 9.7.18), and cvt.pack (9.7.9.22)."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.vector_ir_builder import splat
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Negative, Operand, Part
from harness.ptx.types import PtxType

_PLACES = {f"b{i}": (8 * i, 8) for i in range(4)} | {f"h{i}": (16 * i, 16) for i in range(2)} | {"": (0, 32)}
"""Selector of a byte or a halfword -> its first bit and width; without one, the whole word."""
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_WORDS = ("u32", "s32")
_NARROW = ("u2", "s2", "u4", "s4", "u8", "s8", "u16", "s16")


def _split(operand: Operand) -> tuple[Operand, str]:
    """An operand without its selector, and the selector, empty if it has none."""
    return (operand.reg, operand.selector) if isinstance(operand, Part) else (operand, "")


def _signs(instruction: Instruction, kinds: list[PtxType], count: int) -> list[bool]:
    """Which types of a form are signed; there have to be `count` types of 32 bits each."""
    if len(kinds) != count or any(kind.name not in _WORDS for kind in kinds):
        raise instruction.unsupported(f"it needs {count} types, each '.u32' or '.s32'")
    return [kind.kind == "s" for kind in kinds]


def _field(lanes: WarpEmitter, word: str, start: int, bits: int, signed: bool) -> str:
    """`bits` bits of an i32 from `start` on, sign- or zero-extended to i64."""
    moved = lanes.binary("shl", "i32", word, splat("i32", 32 - start - bits))
    cut = lanes.binary("ashr" if signed else "lshr", "i32", moved, splat("i32", 32 - bits))
    return lanes.cast("sext" if signed else "zext", "i32", cut, "i64")


def _clamp(lanes: WarpEmitter, value: str, bits: int, signed: bool) -> str:
    """An i64 clamped to the range of an integer with this many bits."""
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    return _extreme(lanes, "min", _extreme(lanes, "max", value, splat("i64", low)), splat("i64", high))


def _extreme(lanes: WarpEmitter, word: str, a: str, b: str) -> str:
    return lanes.select("i64", lanes.compare("slt" if word == "min" else "sgt", "i64", a, b), a, b)


def _compute(lanes: WarpEmitter, operation: str, a: str, b: str) -> str:
    """The first stage of an instruction, named without the digit of its width, on i64."""
    match operation:
        case "vadd" | "vsub":
            return lanes.binary(operation[1:], "i64", a, b)
        case "vmin" | "vmax":
            return _extreme(lanes, operation[1:], a, b)
        case "vabsdiff":
            there, back = lanes.binary("sub", "i64", a, b), lanes.binary("sub", "i64", b, a)
            return _extreme(lanes, "max", there, back)
        case "vavrg":
            total = lanes.binary("add", "i64", a, b)
            nonnegative = lanes.compare("sge", "i64", total, splat("i64", 0))
            rounded = lanes.binary("add", "i64", total, lanes.cast("zext", "i1", nonnegative, "i64"))
            return lanes.binary("ashr", "i64", rounded, splat("i64", 1))
        case _:
            order = operation if operation in ("eq", "ne") else f"s{operation}"
            return lanes.cast("zext", "i1", lanes.compare(order, "i64", a, b), "i64")


# One result ---------------------------------------------------------------------------------------------------------


def _place(instruction: Instruction, selector: str) -> tuple[int, int]:
    """First bit and width of the byte or halfword that a selector names; the whole word without one."""
    if selector not in _PLACES:
        raise instruction.unsupported(f"selector '.{selector}'")
    return _PLACES[selector]


def _scalar_source(lanes: WarpEmitter, instruction: Instruction, operand: Operand, signed: bool) -> str:
    register, selector = _split(operand)
    return _field(lanes, lanes.use(register, "i32"), *_place(instruction, selector), signed)


def _shifted(lanes: WarpEmitter, word: str, mode: str, a: str, b: str) -> str:
    """a, of 33 bits, shifted by 0 to 32 places.

    Shifted left by 32, all values but zero exceed every range, so only the sign matters.
    """
    if mode == "clamp":
        b = _extreme(lanes, "min", b, splat("i64", 32))
        if word == "vshl":
            sign = _extreme(lanes, "max", splat("i64", -1), _extreme(lanes, "min", splat("i64", 1), a))
            a = lanes.select("i64", lanes.compare("eq", "i64", b, splat("i64", 32)), sign, a)
    else:
        b = lanes.binary("and", "i64", b, splat("i64", 31))
    return lanes.binary("shl" if word == "vshl" else "ashr", "i64", a, b)


@emits("vadd", "vsub", "vabsdiff", "vmin", "vmax", "vset", "vshl", "vshr")
def scalar_video(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Arithmetic, shift or comparison of parts of words; then .add, .min or .max with c, or a merge into c."""
    form, word = Form(instruction), instruction.opcode
    compares, shifts = word == "vset", word in ("vshl", "vshr")
    saturates = not compares and form.flag("sat")
    operation = form.choice(*_COMPARISONS) if compares else word
    mode = form.choice("clamp", "wrap") if shifts else ""
    second = form.choice("add", "min", "max")
    signs = _signs(instruction, form.types(), 2 if compares else 3)
    form.end()
    target_signed, *source_signs = [False, *signs] if compares else signs
    destination, *sources = instruction.operands
    destination, selector = _split(destination)
    if operation is None or mode is None or (shifts and source_signs[1]) or (second and selector):
        raise instruction.unsupported()
    if (len(sources) == 3) != bool(second or selector):
        raise instruction.unsupported(f"a form with {len(instruction.operands)} operands")
    a, b = (_scalar_source(lanes, instruction, o, signed) for o, signed in zip(sources, source_signs))
    result = _shifted(lanes, word, mode, a, b) if shifts and mode else _compute(lanes, operation, a, b)
    start, bits = _place(instruction, selector)
    if saturates:
        result = _clamp(lanes, result, bits, target_signed)
    if second:
        c = _field(lanes, lanes.use(sources[2], "i32"), 0, 32, target_signed)
        result = lanes.binary("add", "i64", result, c) if second == "add" else _extreme(lanes, second, result, c)
    narrow = lanes.cast("trunc", "i64", result, "i32")
    if selector:
        narrow = _merge(lanes, narrow, lanes.use(sources[2], "i32"), start, bits)
    lanes.put(destination, narrow, "i32")


def _merge(lanes: WarpEmitter, part: str, whole: str, start: int, bits: int) -> str:
    """`whole` with its `bits` bits from `start` replaced by the low ones of `part`."""
    mask = ((1 << bits) - 1) << start
    moved = lanes.binary("shl", "i32", part, splat("i32", start))
    rest = lanes.binary("and", "i32", whole, splat("i32", ~mask & 0xFFFFFFFF))
    return lanes.binary("or", "i32", rest, lanes.binary("and", "i32", moved, splat("i32", mask)))


@emits("vmad")
def multiply_add(lanes: WarpEmitter, instruction: Instruction) -> None:
    """vmad: a * b + c of parts of words, with the form's negation, plus one, shift and saturation."""
    form = Form(instruction)
    saturates, plus_one = form.flag("sat"), form.flag("po")
    scale = form.choice("shr7", "shr15")
    signs = _signs(instruction, form.types(), 3)
    form.end()
    destination, *sources = instruction.operands
    negated = [isinstance(operand, Negative) for operand in sources]
    a, b, c = (operand.operand if isinstance(operand, Negative) else operand for operand in sources)
    product_negated = negated[0] != negated[1]
    if (plus_one and any(negated)) or (product_negated and negated[2]) or isinstance(c, Part):
        raise instruction.unsupported("operands that are negated")
    signed = signs[1] or signs[2] or product_negated or negated[2]
    wide = "i128"
    extended = []
    for operand, operand_signed in ((a, signs[1]), (b, signs[2]), (c, signed)):
        value = _scalar_source(lanes, instruction, operand, operand_signed)
        extended.append(lanes.cast("sext", "i64", value, wide))
    x, y, z = extended
    result, zero = lanes.binary("mul", wide, x, y), splat(wide, 0)
    result = lanes.binary("sub", wide, zero, result) if product_negated else result
    z = lanes.binary("sub", wide, zero, z) if negated[2] else z
    result = lanes.binary("add", wide, result, z)
    result = lanes.binary("add", wide, result, splat(wide, 1)) if plus_one else result
    if scale:
        result = lanes.binary("ashr", wide, result, splat(wide, int(scale[3:])))
    if saturates:
        low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)
        below, above = (
            lanes.compare(order, wide, result, splat(wide, limit)) for order, limit in (("slt", low), ("sgt", high))
        )
        result = lanes.select(wide, below, splat(wide, low), lanes.select(wide, above, splat(wide, high), result))
    lanes.put(destination, lanes.cast("trunc", wide, result, "i32"), "i32")


# Two or four results ------------------------------------------------------------------------------------------------


def _selected(instruction: Instruction, selector: str, count: int, first: int) -> list[int]:
    """The bytes or halfwords of {b, a} that a selector names, lowest result first; by default those from `first` on."""
    if not selector:
        return list(range(first, first + count))
    numbers = _numbers(selector, count, below=2 * count)
    if len(numbers) != count:
        raise instruction.unsupported(f"selector '.{selector}'")
    return numbers[::-1]


def _masked(instruction: Instruction, mask: str, count: int) -> list[int]:
    """Indices of the results that a mask selects; all without a mask."""
    if not mask:
        return list(range(count))
    numbers = _numbers(mask, count, below=count)
    if not numbers or sorted(set(numbers))[::-1] != numbers:
        raise instruction.unsupported(f"mask '.{mask}'")
    return numbers


def _numbers(word: str, count: int, below: int) -> list[int]:
    """The digits behind the letter of bytes (`count` 4) or halfwords (2); empty where the word is written otherwise."""
    letter, digits = word[0], word[1:]
    fits = letter == ("b" if count == 4 else "h") and all(digit in "01234567"[:below] for digit in digits)
    return [int(digit) for digit in digits] if fits else []


@emits("vadd2", "vsub2", "vavrg2", "vabsdiff2", "vmin2", "vmax2", "vset2")
@emits("vadd4", "vsub4", "vavrg4", "vabsdiff4", "vmin4", "vmax4", "vset4")
def simd_video(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Two halfwords or four bytes at once; selected results replace those of c, or are added to c."""
    form, word = Form(instruction), instruction.opcode[:-1]
    count = int(instruction.opcode[-1])
    bits, compares = 32 // count, word == "vset"
    saturates, adds = not compares and form.flag("sat"), form.flag("add")
    operation = form.choice(*_COMPARISONS) if compares else word
    signs = _signs(instruction, form.types(), 2 if compares else 3)
    form.end()
    if operation is None or (saturates and adds):
        raise instruction.unsupported()
    target_signed, *source_signs = [False, *signs] if compares else signs
    destination, a, b, c = instruction.operands
    (destination, mask), (a, a_selector), (b, b_selector) = _split(destination), _split(a), _split(b)
    words = [lanes.use(operand, "i32") for operand in (a, b)]
    result = whole = lanes.use(c, "i32")
    picks = [_selected(instruction, s, count, first) for s, first in ((a_selector, 0), (b_selector, count))]
    for index in _masked(instruction, mask, count):
        values = []
        for pick, signed in zip(picks, source_signs):
            source, place = divmod(pick[index], count)
            values.append(_field(lanes, words[source], bits * place, bits, signed))
        value = _compute(lanes, operation, *values)
        if saturates:
            value = _clamp(lanes, value, bits, target_signed)
        narrow = lanes.cast("trunc", "i64", value, "i32")
        if adds:
            whole = lanes.binary("add", "i32", whole, narrow)
        else:
            result = _merge(lanes, narrow, result, bits * index, bits)
    lanes.put(destination, whole if adds else result, "i32")


@emits("cvt.pack")
def pack(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cvt.pack.sat: a and b clamped to narrow integers, b lowest; below 16 bits, the low bits of c follow above."""
    form = Form(instruction)
    if not form.flag("pack") or not form.flag("sat"):
        raise instruction.unsupported("it needs '.sat'")
    words = form.rest()
    bits = int(words[0][1:]) if words and words[0] in _NARROW else 0
    if words[1:] != (["s32"] if bits == 16 else ["s32", "b32"]) or not bits:
        raise instruction.unsupported("types")
    destination, a, b, *rest = instruction.operands
    if len(rest) != (bits < 16):
        raise instruction.unsupported(f"a form with {len(instruction.operands)} operands")
    result = splat("i32", 0)
    if rest:
        result = lanes.binary("shl", "i32", lanes.use(rest[0], "i32"), splat("i32", 2 * bits))
    for operand, start in ((b, 0), (a, bits)):
        value = _clamp(lanes, _field(lanes, lanes.use(operand, "i32"), 0, 32, signed=True), bits, words[0][0] == "s")
        result = _merge(lanes, lanes.cast("trunc", "i64", value, "i32"), result, start, bits)
    lanes.put(destination, result, "i32")
