"""Emits ldmatrix, stmatrix and movmatrix (PTX ISA 9.7.14.5.15 ff.): 8 x 8 matrices of 16-bit elements.

Each lane provides the address of one row, 16 bytes in shared memory: lanes 0 to 7 those of the first matrix, and so on.
Each register receives one matrix, of which lane 4 i + j holds elements 2 j and 2 j + 1 of row i or, with `.trans`, of
column i. So the 32 lanes of a register in order are the rows of the matrix in order.

A matrix is one group of a request: its rows are served together, and its wavefronts are those of eight lanes that
access 16 bytes each. (Measured on an H200, with and without `.trans`, for 1, 2 and 4 matrices and 12 address patterns.)
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.memory import count_shared
from harness.emulator.codegen.instructions.warp import check_whole_warp
from harness.emulator.codegen.instrumentation.watched import watch_shared
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Instruction, Operand, Vector
from harness.ptx.opcodes import STORE_ROWS

ROW_BYTES = 16
_ROWS = 8
_MATRIX_BYTES = ROW_BYTES * _ROWS
_COUNTS = {"x1": 1, "x2": 2, "x4": 4}


@emits("ldmatrix")
def load_matrix(lanes: WarpEmitter, instruction: Instruction) -> None:
    """ldmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 r, [p]."""
    registers, address = instruction.operands
    space, transposed, items = _read_form(instruction, registers)
    check_whole_warp(lanes, instruction)
    addresses = _own_addresses(lanes, space, address)
    for item, value in zip(items, load_rows(lanes, instruction, space, addresses, len(items), transposed)):
        lanes.put(item, value, "i32")


@emits("stmatrix")
def store_matrix(lanes: WarpEmitter, instruction: Instruction) -> None:
    """stmatrix.sync.aligned.m8n8.num{.trans}{.shared}.b16 [p], r."""
    address, registers = instruction.operands
    space, transposed, items = _read_form(instruction, registers)
    check_whole_warp(lanes, instruction)
    addresses = _own_addresses(lanes, space, address)
    _store_rows(lanes, instruction, space, addresses, [lanes.use(item, "i32") for item in items], transposed)


def _own_addresses(lanes: WarpEmitter, space: str, address: Operand) -> str:
    """Row addresses, which have to be in the block's own shared memory: i32 offsets, or i64 if the space is generic."""
    if space != "generic":
        return lanes.own_offsets(address)
    addresses = lanes.address(address)
    return lanes.binary("sub", "i64", addresses, lanes.own_tag("i64")) if lanes.knows_clusters else addresses


@emits("movmatrix")
def transpose_matrix(lanes: WarpEmitter, instruction: Instruction) -> None:
    """movmatrix.sync.aligned.m8n8.trans.b16 d, a."""
    form = Form(instruction)
    words = [form.flag(word) for word in ("sync", "aligned", "m8n8", "trans")]
    form.type("b16")
    form.end()
    if not all(words):
        raise instruction.unsupported()
    check_whole_warp(lanes, instruction)
    destination, source = instruction.operands
    lanes.put(destination, transpose(lanes, lanes.use(source, "i32")), "i32")


def transpose(lanes: WarpEmitter, register: str) -> str:
    """The transposed 8 x 8 matrix of a register."""
    return lanes.prelude("transpose_matrix", register)


def _read_form(instruction: Instruction, registers: Operand) -> tuple[str, bool, tuple[Operand, ...]]:
    """Space, whether `.trans` is present, and the registers."""
    form = Form(instruction)
    words = [form.flag(word) for word in ("sync", "aligned", "m8n8")]
    count = _COUNTS.get(form.choice(*_COUNTS) or "")
    transposed = form.flag("trans")
    space = form.choice("shared", "shared::cta") or "generic"
    form.type("b16")
    form.end()
    items = registers.items if isinstance(registers, Vector) else (registers,)
    if not all(words) or len(items) != count or isinstance(registers, Address):
        raise instruction.unsupported()
    return space.partition("::")[0], transposed, items


def load_rows(
    lanes: WarpEmitter, instruction: Instruction, space: str, addresses: str, count: int, transposed: bool
) -> list[str]:
    """The registers of `count` matrices. `addresses` are i32 offsets or, if the space is generic, i64."""
    offsets = _copy_rows(lanes, instruction, space, addresses, count)
    values = [lanes.warp_load(vector("i32"), at.DATA + _MATRIX_BYTES * index) for index in range(count)]
    if lanes.instruments.sanitizer:
        for index in range(count):
            for part in range(2 if transposed else 1):
                _watch(lanes, instruction, offsets, index, part if transposed else None)
    return [transpose(lanes, value) for value in values] if transposed else values


def _store_rows(
    lanes: WarpEmitter, instruction: Instruction, space: str, addresses: str, values: Sequence[str], transposed: bool
) -> None:
    if lanes.instruments.sanitizer:
        offsets = lanes.cast("trunc", "i64", addresses, "i32") if space == "generic" else addresses
        for index, value in enumerate(values):
            if transposed:
                for half in (0, 1):
                    part = lanes.binary("lshr", "i32", value, splat("i32", 16 * half))
                    lanes.warp_store(vector("i16"), lanes.cast("trunc", "i32", part, "i16"), at.DATA)
                    _watch(lanes, instruction, offsets, index, half)
            else:
                lanes.warp_store(vector("i32"), value, at.DATA)
                _watch(lanes, instruction, offsets, index, None)
    for index, value in enumerate(values):
        row_major = transpose(lanes, value) if transposed else value
        lanes.warp_store(vector("i32"), row_major, at.DATA + _MATRIX_BYTES * index)
    _copy_rows(lanes, instruction, space, addresses, len(values))


def _copy_rows(lanes: WarpEmitter, instruction: Instruction, space: str, addresses: str, count: int) -> str:
    """Count and check the request, and copy rows between shared memory and DATA; returns their offsets as i32."""
    generic = space == "generic"
    lanes.warp_store(vector("i64" if generic else "i32"), addresses, at.ADDRESSES)
    rows = _ROWS * count
    active = lanes.active_bits()
    some = lanes.op(f"icmp ne i32 {active}, 0")
    mask = lanes.op(f"select i1 {some}, i64 {(1 << rows) - 1}, i64 0")
    count_shared(lanes, instruction, mask, ROW_BYTES, generic)
    function = "store_rows" if instruction.facts.memory is STORE_ROWS else "load_rows"
    failed = lanes.runtime(function, "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask, str(int(generic)))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    return lanes.cast("trunc", "i64", addresses, "i32") if generic else addresses


def _watch(lanes: WarpEmitter, instruction: Instruction, offsets: str, matrix: int, half: int | None) -> None:
    """Report to the sanitizer which elements each lane holds: two of a row or, with `.trans`, one `half` of two."""
    if half is None:
        rows = [_ROWS * matrix + (lane >> 2) for lane in range(at.LANES)]
        places = [4 * (lane & 3) for lane in range(at.LANES)]
        shape = ("4", "1")
    else:
        rows = [_ROWS * matrix + 2 * (lane & 3) + half for lane in range(at.LANES)]
        places = [2 * (lane >> 2) for lane in range(at.LANES)]
        shape = ("2", "1")
    order = ", ".join(f"i32 {row}" for row in rows)
    kind = vector("i32")
    starts = lanes.op(f"shufflevector {kind} {offsets}, {kind} poison, <32 x i32> <{order}>")
    within = "<" + ", ".join(f"i32 {place}" for place in places) + ">"
    lanes.warp_store(kind, lanes.binary("add", "i32", starts, within), at.ADDRESSES)
    watch_shared(lanes, instruction, lanes.widen(lanes.active_bits()), shape)
