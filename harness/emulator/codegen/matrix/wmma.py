"""Emits wmma.load, wmma.mma and wmma.store (PTX ISA 9.7.14.4), as nvcuda::wmma uses them.

PTX does not define which lane holds which element, nor the steps of a product. Here both are those of an H200, where
each `wmma` is two `mma` (four of m16n8k4 for tf32), and loads and stores are as `ptxas` generates them: ldmatrix for
16-bit A and B in shared memory; otherwise loads of 4 bytes per lane, or of 8 if two accumulators are adjacent, with a
transposition of 16-bit tiles whose elements are not contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.memory import count_shared, load_shared, translate
from harness.emulator.codegen.instructions.warp import check_whole_warp, where_some_run
from harness.emulator.codegen.instrumentation.watched import watch_memory, watch_shared
from harness.emulator.codegen.matrix.dot_product import DOT_PRODUCTS, DotProduct
from harness.emulator.codegen.matrix.eight_bit_products import INTEGER_PRODUCTS, EightBitProduct
from harness.emulator.codegen.matrix.fragments import WMMA_SHAPES, Fragment, wmma_layout
from harness.emulator.codegen.matrix.matrix_memory import load_rows, transpose
from harness.emulator.codegen.matrix.matrix_multiply import homes_of, multiply, put_registers, registers_of
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction, Operand

_ORDERS = ("row", "col")


def _begin(instruction: Instruction) -> Form:
    if not {"sync", "aligned"} <= set(instruction.modifiers):
        raise instruction.unsupported()
    form = Form(instruction)
    for word in (instruction.modifiers[0], "sync", "aligned"):
        form.flag(word)
    return form


# Memory ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Matrix:
    """A matrix in memory."""

    fragment: Fragment
    space: str
    by_rows: bool
    """Whether rows are contiguous, or else columns."""
    base: str
    """Its address in each lane: i32 in shared memory, else i64."""
    stride: str
    """Bytes from one row, or column, to the next; has the type of `base`."""

    @property
    def element(self) -> str:
        """LLVM type of addresses."""
        return "i32" if self.space == "shared" else "i64"

    @property
    def lies_across(self) -> bool:
        """Whether neighbouring places of a group are not adjacent in memory."""
        return self.fragment.groups_are_rows != self.by_rows


@dataclass(frozen=True)
class _Request:
    """One access of all lanes: the registers that it loads or stores, and its location in elements."""

    registers: tuple[int, ...]
    lines: tuple[int, ...]
    """For each lane, the contiguous row (or column) that it accesses."""
    along: tuple[int, ...]
    """For each lane, the element within that row or column."""
    turned: bool = False
    """Whether the tile has to be transposed."""
    item: int | None = None
    """The element of the register that is loaded, of 8-bit elements that are not adjacent; None for all of them."""


def _requests(matrix: _Matrix) -> Iterator[_Request]:
    fragment = matrix.fragment
    # Tiles whose registers hold the same elements, as for f16, are loaded once.
    firsts = [r for r in range(fragment.registers) if fragment.origins.index(fragment.origins[r]) == r]
    if fragment.packed == 2:
        for register in firsts:
            line, along = _in_memory(matrix, fragment.origins[register])
            lines = tuple(line + (lane >> 2) for lane in range(at.LANES))
            places = tuple(along + 2 * (lane & 3) for lane in range(at.LANES))
            yield _Request((register,), lines, places, matrix.lies_across)
        return
    if fragment.packed == 4:
        for register in firsts:
            line, along = _in_memory(matrix, fragment.origins[register])
            if not matrix.lies_across:
                lines = tuple(line + (lane >> 2) for lane in range(at.LANES))
                places = tuple(along + 4 * (lane & 3) for lane in range(at.LANES))
                yield _Request((register,), lines, places)
                continue
            for item in range(4):
                elements = [_in_memory(matrix, fragment.element(register, lane, item)) for lane in range(at.LANES)]
                lines, places = zip(*elements)
                yield _Request((register,), lines, places, item=item)
        return
    # Two accumulators that are adjacent in memory are accessed together.
    together = 2 if fragment.spread == 2 and not matrix.lies_across else 1
    for register in firsts[::together]:
        elements = [_in_memory(matrix, fragment.element(register, lane)) for lane in range(at.LANES)]
        lines, places = zip(*elements)
        yield _Request(tuple(range(register, register + together)), lines, places)


def _in_memory(matrix: _Matrix, element: tuple[int, int]) -> tuple[int, int]:
    row, column = element
    return (row, column) if matrix.by_rows else (column, row)


def _read_form(lanes: WarpEmitter, instruction: Instruction, operands: tuple[str, ...]) -> tuple[_Matrix, Operand]:
    """The matrix in memory, and the registers. `operands` are the letters that the instruction may name."""
    form = _begin(instruction)
    which, order = form.choice(*operands), form.choice(*_ORDERS)
    shape, space = form.choice(*WMMA_SHAPES), form.choice("global", "shared", "shared::cta") or "generic"
    kind = form.type("f16 bf16 tf32 s8 u8" if which in ("a", "b") else "f16 f32 s32").name
    form.end()
    if which is None or order is None or shape is None or len(instruction.operands) not in (2, 3):
        raise instruction.unsupported()
    fragment = _fragment(instruction, which, shape, kind)
    first, second, *rest = instruction.operands
    address, registers = (first, second) if "store" in instruction.modifiers else (second, first)
    registers_of(instruction, registers, fragment)
    space = space.partition("::")[0]
    element = "i32" if space == "shared" else "i64"
    by_rows = order == "row"
    check_whole_warp(lanes, instruction)
    bytes_each = fragment.bits // 8
    if rest:
        # 32 bits, whatever the addresses are.
        stride = lanes.cast("zext", "i32", lanes.use(rest[0], "i32"), element)
        stride = lanes.binary("mul", element, stride, splat(element, bytes_each))
    else:
        stride = splat(element, bytes_each * (fragment.columns if by_rows else fragment.rows))
    base = lanes.own_offsets(address) if space == "shared" else lanes.address(address)
    return _Matrix(fragment, space, by_rows, base, stride), registers


def _fragment(instruction: Instruction, which: str, shape: str, kind: str) -> Fragment:
    tf32 = shape == "m16n16k8"
    if which in ("a", "b"):
        if (kind == "tf32") != tf32:
            raise instruction.unsupported("there is no such combination of shape and type")
        layout = wmma_layout(shape, kind, 32)
        return layout.a if which == "a" else layout.b
    if tf32 and kind != "f32":
        raise instruction.unsupported("there is no such combination of shape and type")
    return wmma_layout(shape, "tf32" if tf32 else "f16", 16 if kind == "f16" else 32).c


def _addresses(lanes: WarpEmitter, matrix: _Matrix, lines: tuple[int, ...], along: tuple[int, ...]) -> str:
    element = matrix.element
    offset = lanes.binary("mul", element, matrix.stride, _constants(element, lines))
    bytes_each = matrix.fragment.bits // 8
    offset = lanes.binary("add", element, offset, _constants(element, tuple(bytes_each * place for place in along)))
    return lanes.binary("add", element, matrix.base, offset)


def _constants(element: str, values: tuple[int, ...]) -> str:
    return "<" + ", ".join(f"{element} {value}" for value in values) + ">"


@emits("wmma.load")
def load(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wmma.load.{a,b,c}.sync.aligned.{row,col}.shape{.space}.type r, [p]{, stride}."""
    matrix, registers = _read_form(lanes, instruction, ("a", "b", "c"))
    fragment = matrix.fragment
    found: dict[tuple[int, int], str] = {}
    requests = list(_requests(matrix))
    if matrix.space == "shared" and fragment.packed == 2 and not {"c"} & set(instruction.modifiers):
        for first in range(0, len(requests), 4):
            _load_by_rows(lanes, instruction, matrix, requests[first : first + 4], found)
    else:
        for request in requests:
            values = _load_request(lanes, instruction, matrix, request)
            if request.turned:
                values = [transpose(lanes, value) for value in values]
            for register, value in zip(request.registers, values):
                origin = fragment.origins[register]
                if request.item is not None:
                    value = lanes.cast("zext", "i8", value, "i32")
                    value = lanes.binary("shl", "i32", value, splat("i32", 8 * request.item))
                    value = lanes.binary("or", "i32", found.get(origin, splat("i32", 0)), value)
                found[origin] = value
    put_registers(lanes, instruction, registers, fragment, [found[origin] for origin in fragment.origins])


def _load_by_rows(
    lanes: WarpEmitter,
    instruction: Instruction,
    matrix: _Matrix,
    requests: list[_Request],
    found: dict[tuple[int, int], str],
) -> None:
    """Load tiles by ldmatrix: lane 8 i + j has the address of row j of tile i."""
    rows = [(request.lines[4 * row], request.along[0]) for request in requests for row in range(8)]
    rows += rows[:1] * (at.LANES - len(rows))
    lines, along = zip(*rows)
    addresses = _addresses(lanes, matrix, lines, along)
    values = load_rows(lanes, instruction, "shared", addresses, len(requests), matrix.lies_across)
    for request, value in zip(requests, values):
        found[matrix.fragment.origins[request.registers[0]]] = value


def _load_request(lanes: WarpEmitter, instruction: Instruction, matrix: _Matrix, request: _Request) -> list[str]:
    count = len(request.registers)
    element, size = ("i32", 4) if request.item is None else ("i8", 1)
    shape = (str(size), str(count))
    addresses = _addresses(lanes, matrix, request.lines, request.along)
    if matrix.space == "shared":
        return load_shared(lanes, instruction, addresses, element, count)
    mask = translate(lanes, instruction, matrix.space, addresses, size * count)
    lanes.runtime("gather", "%warp", mask, *shape)
    watch_memory(lanes, instruction, matrix.space, mask, shape)
    return [lanes.warp_load(vector(element), at.DATA + at.LANES * size * index, 32) for index in range(count)]


@emits("wmma.store")
def store(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wmma.store.d.sync.aligned.{row,col}.shape{.space}.type [p], r{, stride}."""
    matrix, registers = _read_form(lanes, instruction, ("d",))
    values = [lanes.use(item, "i32") for item in registers_of(instruction, registers, matrix.fragment)]
    for request in _requests(matrix):
        leaving = [values[register] for register in request.registers]
        _store_request(
            lanes, instruction, matrix, request, [transpose(lanes, v) for v in leaving] if request.turned else leaving
        )


def _store_request(
    lanes: WarpEmitter, instruction: Instruction, matrix: _Matrix, request: _Request, values: list[str]
) -> None:
    shape = ("4", str(len(values)))
    addresses = _addresses(lanes, matrix, request.lines, request.along)
    if matrix.space == "shared":
        mask = lanes.widen(lanes.active_bits())
        lanes.warp_store(vector("i32"), addresses, at.ADDRESSES)
        count_shared(lanes, instruction, mask, 4 * len(values), generic=False)
    else:
        mask = translate(lanes, instruction, matrix.space, addresses, 4 * len(values))
    for index, value in enumerate(values):
        lanes.warp_store(vector("i32"), value, at.DATA + 128 * index)
    if matrix.space == "shared":
        watch_shared(lanes, instruction, mask, shape)
        failed = lanes.runtime("shared_store", "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask, *shape)
        lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    else:
        watch_memory(lanes, instruction, matrix.space, mask, shape)
        lanes.runtime("scatter", "%warp", mask, *shape)


# Arithmetic -----------------------------------------------------------------------------------------------------------


@emits("wmma.mma")
def multiply_fragments(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wmma.mma.sync.aligned.alayout.blayout.shape.dtype{.atype.btype}.ctype d, a, b, c."""
    form = _begin(instruction)
    orders = [form.choice(*_ORDERS) for _ in "ab"]
    shape = form.choice(*WMMA_SHAPES)
    types = [kind.name for kind in form.types()]
    saturates = form.flag("satfinite")
    form.end()
    if None in orders or shape is None or len(instruction.operands) != 4 or len(types) not in (2, 4):
        raise instruction.unsupported()
    if "s32" in types:
        _multiply_integers(lanes, instruction, shape, types, saturates)
        return
    if saturates:
        raise instruction.unsupported("modifier '.satfinite'")
    d_type, *multiplicands, c_type = types
    kind, *rest = dict.fromkeys(multiplicands or ["f16"])
    fits = kind in ("f16", "bf16") if shape != "m16n16k8" else kind == "tf32"
    only_floats = kind == "f16" or (c_type, d_type) == ("f32", "f32")
    if rest or not fits or not only_floats or {c_type, d_type} - {"f16", "f32"} or (kind == "f16" and multiplicands):
        raise instruction.unsupported("there is no such combination of shape and types")
    check_whole_warp(lanes, instruction)
    d, a, b, c = instruction.operands
    layouts = {name: wmma_layout(shape, kind, 16 if name == "f16" else 32) for name in ("f16", "f32")}
    left = homes_of(lanes, instruction, a, layouts["f32"].a)
    right = homes_of(lanes, instruction, b, layouts["f32"].b)
    # The sum has f16 format only if both C and D have; otherwise f16 is converted before or after.
    accumulator = "f16" if c_type == d_type == "f16" else "f32"
    if accumulator == c_type:
        total = homes_of(lanes, instruction, c, layouts[c_type].c)
    else:
        total = _widened(lanes, [lanes.use(item, "i32") for item in registers_of(instruction, c, layouts[c_type].c)])
    product = DOT_PRODUCTS[kind, 4 if kind == "tf32" else WMMA_SHAPES[shape], accumulator]
    with where_some_run(lanes):
        _two_products(lanes, shape, product, left, right, total)
    count = layouts[accumulator].c.registers
    result = [lanes.warp_load(vector("i32"), offset) for offset in _SCRATCH[:count]]
    put_registers(
        lanes, instruction, d, layouts[d_type].c, result if accumulator == d_type else _narrowed(lanes, result)
    )


def _multiply_integers(
    lanes: WarpEmitter, instruction: Instruction, shape: str, types: list[str], saturates: bool
) -> None:
    """wmma.mma of s8 or u8, as two `mma.m16n8k16`."""
    product = INTEGER_PRODUCTS.get((16, WMMA_SHAPES[shape], types[1], types[1]))
    if product is None or types != ["s32", types[1], types[1], "s32"]:
        raise instruction.unsupported("there is no such combination of shape and types")
    check_whole_warp(lanes, instruction)
    d, a, b, c = instruction.operands
    layout = wmma_layout(shape, types[1], 32)
    left, right, total = (
        homes_of(lanes, instruction, operand, fragment)
        for operand, fragment in ((a, layout.a), (b, layout.b), (c, layout.c))
    )
    with where_some_run(lanes):
        _two_products(lanes, shape, replace(product, saturates=saturates), left, right, total)
    result = [lanes.warp_load(vector("i32"), offset) for offset in _SCRATCH]
    put_registers(lanes, instruction, d, layout.c, result)


_SCRATCH = [at.DATA + 128 * index for index in range(8)]
"""Eight registers that kernels do not use: DATA and DATA_2."""


def _two_products(
    lanes: WarpEmitter, shape: str, product: DotProduct | EightBitProduct, a: list[int], b: list[int], c: list[int]
) -> None:
    """The two `mma` of a `wmma`, see `wmma_layout`; each in several steps if its K is smaller. Leaves D in scratch."""
    if shape == "m8n32k16":
        a, b = b, a
    layout = product.layout
    steps = WMMA_SHAPES[shape] // product.depth
    of_a, of_b, of_c = steps * layout.a.registers, steps * layout.b.registers, layout.c.registers
    for half in (0, 1):
        left = a if shape.startswith("m16") else a[of_a * half :]
        right = b[of_b * half :] if shape.startswith("m16") else b
        result, total = (registers[of_c * half :][:of_c] for registers in (_SCRATCH, c))
        for step in range(steps):
            factor = left[layout.a.registers * step :][: layout.a.registers]
            other = right[layout.b.registers * step :][: layout.b.registers]
            multiply(lanes, product, result, factor, other, result if step else total)


def _widened(lanes: WarpEmitter, registers: list[str]) -> list[int]:
    """Convert packed f16 to f32, one element per register of scratch."""
    for index, register in enumerate(registers):
        for half in (0, 1):
            bits = lanes.cast("trunc", "i32", lanes.binary("lshr", "i32", register, splat("i32", 16 * half)), "i16")
            wide = lanes.cast("bitcast", "float", lanes.prelude("half_to_float", bits), "i32")
            lanes.warp_store(vector("i32"), wide, _SCRATCH[2 * index + half])
    return _SCRATCH


def _narrowed(lanes: WarpEmitter, registers: list[str]) -> list[str]:
    """Convert f32 to packed f16, to nearest even."""
    halves = [
        lanes.cast("zext", "i16", lanes.prelude("float_to_half", lanes.cast("bitcast", "i32", r, "float")), "i32")
        for r in registers
    ]
    pairs = zip(halves[::2], halves[1::2])
    return [lanes.binary("or", "i32", low, lanes.binary("shl", "i32", high, splat("i32", 16))) for low, high in pairs]
