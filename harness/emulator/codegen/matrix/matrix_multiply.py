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
from harness.emulator.codegen.matrix.eight_bit_products import FLOATS, INTEGER_PRODUCTS
from harness.emulator.codegen.matrix.fragments import Fragment, MmaLayout, mma_layout
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand, Vector
from harness.ptx.opcodes import matrix_shape
from harness.ptx.types import TYPES

_ROUNDINGS = ("rn", "rz", "rm", "rp")
_DOUBLE_SHAPES = ((8, 4), (16, 4), (16, 8), (16, 16))
"""Rows and K of the supported shapes of f64."""
_VD = vector("double")


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
    if set(types) == {"f64"} and (rows, depth) in _DOUBLE_SHAPES and not saturates:
        _multiply_doubles(lanes, instruction, rows, depth, rounding or "rn")
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


def _multiply_doubles(lanes: WarpEmitter, instruction: Instruction, rows: int, depth: int, rounding: str) -> None:
    """A product of f64: each element of D is a chain of fused multiply-adds in ascending K.

    It is documented that each step rounds as `fma.f64` does. The order is not documented; an A100 has it (Fasi and
    others, "Numerical behavior of NVIDIA tensor cores", 2021), and it was not tested on a GPU here.
    """
    layout = mma_layout(depth, 32, 32, rows)
    d, a, b, c = instruction.operands
    check_whole_warp(lanes, instruction)
    left, right = _values(lanes, instruction, a, layout.a), _values(lanes, instruction, b, layout.b)
    results = []
    for register, total in enumerate(_values(lanes, instruction, c, layout.c)):
        elements = [layout.c.element(register, lane) for lane in range(32)]
        for k in range(depth):
            x = _spread(lanes, left, layout.a, [(row, k) for row, _ in elements])
            y = _spread(lanes, right, layout.b, [(k, column) for _, column in elements])
            if rounding == "rn":
                total = lanes.fma("double", x, y, total)
            else:
                total = lanes.prelude(f"fma_double_{rounding}", x, y, total)
        results.append(total)
    for target, value in zip(registers_of(instruction, d, layout.c), results, strict=True):
        lanes.put(target, value, "double")


def _values(lanes: WarpEmitter, instruction: Instruction, operand: Operand, fragment: Fragment) -> list[str]:
    return [lanes.use(item, "double") for item in registers_of(instruction, operand, fragment)]


def _spread(lanes: WarpEmitter, registers: list[str], fragment: Fragment, elements: list[tuple[int, int]]) -> str:
    """Broadcast each lane's element, which is in the same register for all lanes."""
    places = [fragment.place(*element) for element in elements]
    ((register),) = {place.register for place in places}
    order = ", ".join(f"i32 {place.lane}" for place in places)
    return lanes.op(f"shufflevector {_VD} {registers[register]}, {_VD} poison, <32 x i32> <{order}>")


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
