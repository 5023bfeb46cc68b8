"""Emits mma.sync (PTX ISA 9.7.14.5.14): one matrix product per warp. `dot_product.py` describes the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.warp import check_whole_warp, where_some_run
from harness.emulator.codegen.matrix.converted_products import CONVERTED_PRODUCTS
from harness.emulator.codegen.matrix.dot_product import DOT_PRODUCTS
from harness.emulator.codegen.matrix.double_products import DOUBLE_SHAPES, multiply_doubles
from harness.emulator.codegen.matrix.eight_bit_products import FLOATS, INTEGER_PRODUCTS
from harness.emulator.codegen.matrix.fragments import Fragment, MmaLayout
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand, Vector
from harness.ptx.opcodes import matrix_shape
from harness.ptx.types import TYPES

_ROUNDINGS = ("rn", "rz", "rm", "rp")


class MatrixProduct(Protocol):
    """The arithmetic of one `mma`."""

    @property
    def name(self) -> str:
        """Name of its function in the runtime."""
        ...

    @property
    def flags(self) -> tuple[int, ...]:
        """The function's last arguments."""
        ...

    @property
    def layout(self) -> MmaLayout:
        """The layout of its fragments."""
        ...


@emits("mma")
def mma(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mma.sync.aligned.m*n8k*.row.col{.satfinite}.dtype.atype.btype.ctype{.rounding} d, a, b, c."""
    form = Form(instruction)
    collective = form.flag("sync"), form.flag("aligned")
    shape = matrix_shape(form.rest())
    if shape is not None:
        form.flag(shape.word)
    orders = form.flag("row"), form.flag("col")
    types = element_types(form)
    saturates = form.flag("satfinite")
    rounding = form.choice(*_ROUNDINGS)
    form.end()
    if not all((*collective, *orders)) or shape is None or shape.columns != 8 or len(types) != 4:
        raise instruction.unsupported()
    d_type, a_type, b_type, c_type = types
    rows, depth = shape.rows, shape.depth
    if set(types) == {"f64"} and (rows, depth) in DOUBLE_SHAPES and not saturates:
        multiply_doubles(lanes, instruction, rows, depth, rounding or "rn")
        return
    product = _product(rows, depth, a_type, b_type, c_type, saturates)
    if product is None or c_type != d_type or rounding is not None:
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


def element_types(form: Form) -> list[str]:
    """All types among the modifiers, in order, including those that only matrix products have."""
    types = [word for word in form.rest() if word in TYPES or word in FLOATS]
    for word in types:
        form.flag(word)
    return types


def _product(rows: int, depth: int, a: str, b: str, c: str, saturates: bool) -> MatrixProduct | None:
    integers = INTEGER_PRODUCTS.get((rows, depth, a, b))
    if integers is not None:
        return replace(integers, saturates=saturates) if c == integers.accumulator else None
    if rows != 16 or saturates:
        return None
    return CONVERTED_PRODUCTS.get((a, b, depth, c)) or (DOT_PRODUCTS.get((a, depth, c)) if a == b else None)


def multiply(
    lanes: WarpEmitter, product: MatrixProduct, d: Sequence[int], a: Sequence[int], b: Sequence[int], c: Sequence[int]
) -> None:
    """D = A B + C, on registers whose lanes are at these offsets in the warp's state."""
    lanes.runtime(product.name, "%warp", *(lanes.number(place) for place in (*d, *a, *b, *c)), *map(str, product.flags))


def registers_of(instruction: Instruction, operand: Operand, fragment: Fragment) -> tuple[Operand, ...]:
    """The registers in the braces of a fragment. Raises `UnsupportedInstruction` if their number is wrong."""
    if not isinstance(operand, Vector) or len(operand.items) != fragment.registers:
        raise instruction.unsupported("its operands do not fit its form")
    return operand.items


def homes_of(lanes: WarpEmitter, instruction: Instruction, operand: Operand, fragment: Fragment) -> list[int]:
    """Offsets of a fragment's registers in the warp's state."""
    return [lanes.home(item) for item in registers_of(instruction, operand, fragment)]


def changed(lanes: WarpEmitter, instruction: Instruction, operand: Operand, fragment: Fragment) -> None:
    """Declare that the runtime has written a fragment."""
    for item in registers_of(instruction, operand, fragment):
        lanes.changed_at_home(item)


def put_registers(
    lanes: WarpEmitter, instruction: Instruction, operand: Operand, fragment: Fragment, values: Sequence[str]
) -> None:
    """Write a fragment's registers, i32 each."""
    for item, value in zip(registers_of(instruction, operand, fragment), values, strict=True):
        lanes.put(item, value, "i32")
