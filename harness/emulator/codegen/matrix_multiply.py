"""mma.sync (PTX ISA 9.7.14.5.14): one matrix product per warp. `dot_product.py` says what it computes."""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.codegen.dot_product import DOT_PRODUCTS, DotProduct
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.fragments import Fragment
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.warp import check_whole_warp, where_some_run
from harness.emulator.ptx.instructions import Instruction, Operand, Vector

_DEPTHS = {"m16n8k4": 4, "m16n8k8": 8, "m16n8k16": 16}


@emits("mma")
def mma(lanes: Lanes, instruction: Instruction) -> None:
    """mma.sync.aligned.m16n8k*.row.col.dtype.atype.btype.ctype d, a, b, c."""
    form = Form(instruction)
    collective = form.flag("sync"), form.flag("aligned")
    shape = form.choice(*_DEPTHS)
    orders = form.flag("row"), form.flag("col")
    types = [kind.name for kind in form.types()]
    form.end()
    if not all((*collective, *orders)) or shape is None or len(types) != 4:
        raise instruction.unsupported()
    d_type, a_type, b_type, c_type = types
    product = DOT_PRODUCTS.get((a_type, _DEPTHS[shape], c_type))
    if product is None or a_type != b_type or c_type != d_type:
        raise instruction.unsupported("there is no such combination of shape and types")
    d, a, b, c = instruction.operands
    layout = product.layout
    check_whole_warp(lanes, instruction)
    homes = [
        homes_of(lanes, instruction, o, f) for o, f in ((d, layout.c), (a, layout.a), (b, layout.b), (c, layout.c))
    ]
    with where_some_run(lanes):
        multiply(lanes, product, *homes)
    changed(lanes, instruction, d, layout.c)


def multiply(
    lanes: Lanes, product: DotProduct, d: Sequence[int], a: Sequence[int], b: Sequence[int], c: Sequence[int]
) -> None:
    """D = A B + C, on registers whose lanes are at these places of the warp's state."""
    lanes.runtime(product.name, "%warp", *(str(offset) for offset in (*d, *a, *b, *c)))


def registers_of(instruction: Instruction, operand: Operand, fragment: Fragment) -> tuple[Operand, ...]:
    """The operands in the braces of a fragment. Raises `UnsupportedInstruction` where there are more or fewer."""
    if not isinstance(operand, Vector) or len(operand.items) != fragment.registers:
        raise instruction.unsupported("its operands do not fit its form")
    return operand.items


def homes_of(lanes: Lanes, instruction: Instruction, operand: Operand, fragment: Fragment) -> list[int]:
    """Where the runtime finds a fragment's registers."""
    return [lanes.home(item) for item in registers_of(instruction, operand, fragment)]


def changed(lanes: Lanes, instruction: Instruction, operand: Operand, fragment: Fragment) -> None:
    """The runtime has written a fragment."""
    for item in registers_of(instruction, operand, fragment):
        lanes.changed_at_home(item)


def put_registers(
    lanes: Lanes, instruction: Instruction, operand: Operand, fragment: Fragment, values: Sequence[str]
) -> None:
    """Write a fragment's registers, i32 each."""
    for item, value in zip(registers_of(instruction, operand, fragment), values, strict=True):
        lanes.put(item, value, "i32")
