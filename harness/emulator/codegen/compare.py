"""Comparison and selection (PTX ISA 9.7.5 to 9.7.7)."""

from __future__ import annotations

from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.halves import to_float, unpack
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.table import emits
from harness.emulator.codegen.vocabulary import FLOAT, INTEGER, splat, splat_float
from harness.emulator.ptx.instructions import Instruction, Operand, Pair
from harness.emulator.ptx.types import PtxType

_INTEGER_ORDERS = {"eq": "eq", "ne": "ne", "lo": "ult", "ls": "ule", "hi": "ugt", "hs": "uge"}
_SIGNED_ORDERS = {"lt", "le", "gt", "ge"}
_FLOAT_ORDERS = {"eq": "oeq", "ne": "one", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "num": "ord"}
_FLOAT_ORDERS |= {"equ": "ueq", "neu": "une", "ltu": "ult", "leu": "ule", "gtu": "ugt", "geu": "uge", "nan": "uno"}
_ALL_ORDERS = (*_INTEGER_ORDERS, *_FLOAT_ORDERS)


def _compare(lanes: Lanes, instruction: Instruction, order: str, kind: PtxType, ftz: bool, a: str, b: str) -> str:
    if kind.is_float:
        element = "double" if kind.bits == 64 else "float"
        if ftz and kind.bits == 32:
            a, b = lanes.flush(a), lanes.flush(b)
        return lanes.compare(_FLOAT_ORDERS[order], element, a, b)
    if order in _SIGNED_ORDERS:
        predicate = ("s" if kind.kind == "s" else "u") + order
    elif order in _INTEGER_ORDERS:
        predicate = _INTEGER_ORDERS[order]
    else:
        raise instruction.unsupported()
    return lanes.compare(predicate, INTEGER[kind.bits], a, b)


def _values(lanes: Lanes, kind: PtxType, operand: Operand) -> list[str]:
    if kind.is_float and kind.bits == 16:
        return [to_float(lanes, kind, bits) for bits in unpack(lanes, operand, kind)]
    return [lanes.use(operand, FLOAT[kind.bits] if kind.is_float else INTEGER[kind.bits])]


@emits("setp")
def setp(lanes: Lanes, instruction: Instruction) -> None:
    """setp.order[.boolean] p[|q], a, b[, c]: p = (a ? b) op c, q = !(a ? b) op c. Pairs answer with p and q."""
    form = Form(instruction)
    order = form.choice(*_ALL_ORDERS)
    boolean = form.choice("and", "or", "xor")
    ftz = form.flag("ftz")
    kind = form.type()
    form.end()
    if order is None:
        raise instruction.unsupported()
    destination, a, b, *rest = instruction.operands
    columns = list(zip(_values(lanes, kind, a), _values(lanes, kind, b)))
    found = [_compare(lanes, instruction, order, kind, ftz, x, y) for x, y in columns]
    if len(found) == 1:
        found.append(lanes.binary("xor", "i1", found[0], splat("i1", 1)))
    if boolean is not None:
        c = lanes.use(rest[0], "i1")
        found = [lanes.binary(boolean, "i1", value, c) for value in found]
    if isinstance(destination, Pair):
        lanes.put(destination.first, found[0], "i1")
        lanes.put(destination.second, found[1], "i1")
    else:
        lanes.put(destination, found[0], "i1")


@emits("set")
def set_value(lanes: Lanes, instruction: Instruction) -> None:
    """set.order[.boolean].dtype.stype: 1.0f or all ones where true."""
    form = Form(instruction)
    order = form.choice(*_ALL_ORDERS)
    boolean = form.choice("and", "or", "xor")
    ftz = form.flag("ftz")
    target, kind = form.types()
    form.end()
    if order is None or kind.packed == 2 or target.packed == 2 or target.bits == 16:
        raise instruction.unsupported()
    destination, a, b, *rest = instruction.operands
    found = _compare(lanes, instruction, order, kind, ftz, _values(lanes, kind, a)[0], _values(lanes, kind, b)[0])
    if boolean is not None:
        found = lanes.binary(boolean, "i1", found, lanes.use(rest[0], "i1"))
    if target.is_float:
        one, zero = splat_float("float", 1.0), splat_float("float", 0.0)
        lanes.put(destination, lanes.select("float", found, one, zero), "float")
    else:
        lanes.put(destination, lanes.cast("sext", "i1", found, "i32"), "i32")


@emits("selp")
def selp(lanes: Lanes, instruction: Instruction) -> None:
    """selp: a where the predicate holds, else b."""
    form = Form(instruction)
    kind = form.type()
    form.end()
    element = FLOAT[kind.bits] if kind.is_float and kind.bits > 16 else INTEGER[kind.total_bits]
    destination, a, b, p = instruction.operands
    result = lanes.select(element, lanes.use(p, "i1"), lanes.use(a, element), lanes.use(b, element))
    lanes.put(destination, result, element)


@emits("slct")
def slct(lanes: Lanes, instruction: Instruction) -> None:
    """slct: a where c >= 0, else b."""
    form = Form(instruction)
    ftz = form.flag("ftz")
    kind, test = form.types()
    form.end()
    element = INTEGER[kind.bits]
    destination, a, b, c = instruction.operands
    if test.is_float:
        value = lanes.use(c, "float")
        value = lanes.flush(value) if ftz else value
        condition = lanes.compare("oge", "float", value, splat_float("float", 0.0))
    else:
        condition = lanes.compare("sge", "i32", lanes.use(c, "i32"), splat("i32", 0))
    lanes.put(destination, lanes.select(element, condition, lanes.use(a, element), lanes.use(b, element)), element)
