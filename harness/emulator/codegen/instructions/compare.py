"""Emits comparison and selection (PTX ISA 9.7.5 to 9.7.7)."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.halves import flush, put_packed, to_float, unpack
from harness.emulator.codegen.vector_ir_builder import FLOAT, INTEGER, splat, splat_float
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand, Pair
from harness.ptx.types import PtxType

_UNTYPED_ORDERS = {"eq": "eq", "ne": "ne"}
_SIGNED_ORDERS = {**_UNTYPED_ORDERS, "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_UNSIGNED_ORDERS = {**_UNTYPED_ORDERS, "lt": "ult", "le": "ule", "gt": "ugt", "ge": "uge"}
_UNSIGNED_ORDERS |= {"lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_FLOAT_ORDERS = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord"}
_FLOAT_ORDERS |= {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "nan": "uno"}
_ORDERS = {"b": _UNTYPED_ORDERS, "s": _SIGNED_ORDERS, "u": _UNSIGNED_ORDERS, "f": _FLOAT_ORDERS, "bf": _FLOAT_ORDERS}
_NUMBERS = "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64"
_HALVES = "f16 f16x2 bf16 bf16x2"


class _Comparison:
    """The modifiers of setp and set, and the resulting predicates, one per element."""

    def __init__(self, instruction: Instruction) -> None:
        self._instruction = instruction
        form = Form(instruction)
        self._order = form.choice(*_SIGNED_ORDERS, *_UNSIGNED_ORDERS, *_FLOAT_ORDERS)
        self._boolean = form.choice("and", "or", "xor")
        self._ftz = form.flag("ftz")
        *self.target, self.kind = form.types() or [PtxType("", "", 0)]
        form.end()
        fits = self.kind.name in f"{_NUMBERS} {_HALVES}".split() and self._order in _ORDERS[self.kind.kind]
        if not fits or (self._ftz and self.kind.name not in ("f32", "f16", "f16x2")):
            raise instruction.unsupported()
        if (self._boolean is not None) != (len(instruction.operands) == 4):
            raise instruction.unsupported()

    def answers(self, lanes: WarpEmitter, complement: bool = False) -> list[str]:
        """(a order b) boolean c, for each element; with `complement`, followed by its complement."""
        a, b, *rest = self._instruction.operands[1:]
        columns = zip(self._values(lanes, a), self._values(lanes, b))
        word = _ORDERS[self.kind.kind][str(self._order)]
        found = [lanes.compare(word, self._element, x, y) for x, y in columns]
        if complement and len(found) == 1:
            found.append(lanes.binary("xor", "i1", found[0], splat("i1", 1)))
        if self._boolean is not None:
            c = lanes.use(rest[0], "i1")
            found = [lanes.binary(self._boolean, "i1", value, c) for value in found]
        return found

    @property
    def _element(self) -> str:
        if self.kind.is_float:
            return "double" if self.kind.bits == 64 else "float"
        return INTEGER[self.kind.bits]

    def _values(self, lanes: WarpEmitter, operand: Operand) -> list[str]:
        if self.kind.is_float and self.kind.bits == 16:
            elements = unpack(lanes, operand, self.kind)
            elements = [flush(lanes, self.kind, bits) for bits in elements] if self._ftz else elements
            return [to_float(lanes, self.kind, bits) for bits in elements]
        value = lanes.use(operand, self._element)
        return [lanes.flush(value) if self._ftz else value]


@emits("setp")
def setp(lanes: WarpEmitter, instruction: Instruction) -> None:
    """setp.order[.boolean] p[|q], a, b[, c]: p = (a ? b) op c, q = !(a ? b) op c. Packed pairs set p and q."""
    comparison = _Comparison(instruction)
    destination = instruction.operands[0]
    if comparison.target or (comparison.kind.packed == 2 and not isinstance(destination, Pair)):
        raise instruction.unsupported()
    if isinstance(destination, Pair):
        first, second = comparison.answers(lanes, complement=True)
        lanes.put(destination.first, first, "i1")
        lanes.put(destination.second, second, "i1")
    else:
        lanes.put(destination, comparison.answers(lanes)[0], "i1")


_TARGETS = {
    "u16": "f16 bf16",
    "s16": "f16 bf16",
    "u32": f"{_NUMBERS} {_HALVES}",
    "s32": f"{_NUMBERS} {_HALVES}",
    "f32": _NUMBERS,
    "f16": f"{_NUMBERS} f16",
    "bf16": f"{_NUMBERS} f16 bf16",
    "f16x2": "f16x2",
    "bf16x2": "bf16x2",
}
"""Source types by destination type of `set`."""
_ONE = {"f32": 0x3F800000, "f16": 0x3C00, "f16x2": 0x3C00, "bf16": 0x3F80, "bf16x2": 0x3F80}
"""The value for true, by destination type, if it is not all ones."""


@emits("set")
def set_value(lanes: WarpEmitter, instruction: Instruction) -> None:
    """set.order[.boolean].dtype.stype: one, or all ones, if true; a packed pair gives two halves."""
    comparison = _Comparison(instruction)
    target = comparison.target[0] if comparison.target else comparison.kind
    if len(comparison.target) != 1 or comparison.kind.name not in _TARGETS.get(target.name, "").split():
        raise instruction.unsupported()
    element = "i16" if comparison.kind.packed == 2 else INTEGER[target.bits]
    true = splat(element, _ONE.get(target.name, -1))
    found = [lanes.select(element, answer, true, splat(element, 0)) for answer in comparison.answers(lanes)]
    put_packed(lanes, instruction.operands[0], target if len(found) == 1 else comparison.kind, found)


@emits("selp")
def selp(lanes: WarpEmitter, instruction: Instruction) -> None:
    """selp: a where the predicate holds, else b."""
    form = Form(instruction)
    kind = form.type(_NUMBERS)
    form.end()
    element = FLOAT[kind.bits] if kind.is_float else INTEGER[kind.bits]
    destination, a, b, p = instruction.operands
    result = lanes.select(element, lanes.use(p, "i1"), lanes.use(a, element), lanes.use(b, element))
    lanes.put(destination, result, element)


@emits("slct")
def slct(lanes: WarpEmitter, instruction: Instruction) -> None:
    """slct: a if c >= 0, else b; for NaN b."""
    form = Form(instruction)
    ftz = form.flag("ftz")
    kinds = form.types()
    form.end()
    tests = ("f32",) if ftz else ("f32", "s32")
    if len(kinds) != 2 or kinds[0].name not in _NUMBERS.split() or kinds[1].name not in tests:
        raise instruction.unsupported()
    kind, test = kinds
    element = FLOAT[kind.bits] if kind.is_float else INTEGER[kind.bits]
    destination, a, b, c = instruction.operands
    if test.is_float:
        value = lanes.use(c, "float")
        value = lanes.flush(value) if ftz else value
        condition = lanes.compare("oge", "float", value, splat_float("float", 0.0))
    else:
        condition = lanes.compare("sge", "i32", lanes.use(c, "i32"), splat("i32", 0))
    lanes.put(destination, lanes.select(element, condition, lanes.use(a, element), lanes.use(b, element)), element)
