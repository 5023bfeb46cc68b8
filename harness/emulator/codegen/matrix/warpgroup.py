"""Emits wgmma, the warpgroup products (PTX ISA 9.7.15), and setmaxnreg.

`memory/warpgroup_products.py` implements them.
"""

from __future__ import annotations

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.warp import check_whole_warp
from harness.emulator.codegen.matrix import eight_bit_products as eight_bits
from harness.emulator.codegen.matrix.dot_product import WARPGROUP_PRODUCTS, DotProduct
from harness.emulator.codegen.matrix.eight_bit_products import EightBitProduct
from harness.emulator.codegen.matrix.matrix_multiply import element_types
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Function, Imm, Instruction, Operand, Reg, Vector
from harness.ptx.opcodes import matrix_shape

_COLUMNS = range(8, 257, 8)
_INTEGER_COLUMNS = (8, 24, *range(16, 257, 16))
_SIGN_BITS = {"tf32": 1 << 31, "fp8": 0x80808080}
"""Sign bits of a register of A; two 16-bit floats by default."""
HELD = "@held_tickets"
"""Name of the constant that lists the registers which may hold tickets."""


@emits("wgmma.fence")
def fence(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wgmma.fence: only for the sanitizer, since registers are read at issue and products complete in order."""
    _end(instruction, "fence")
    check_whole_warp(lanes, instruction)


@emits("wgmma.commit_group")
def commit(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wgmma.commit_group."""
    _end(instruction, "commit_group")
    check_whole_warp(lanes, instruction)
    lanes.runtime("commit_products", "%ctx")


@emits("wgmma.wait_group")
def wait(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wgmma.wait_group n: the warp waits for its warpgroup, and the scheduler completes the products."""
    _end(instruction, "wait_group")
    (left,) = instruction.operands
    if not isinstance(left, Imm):
        raise instruction.unsupported("it waits until a constant number of groups is left")
    check_whole_warp(lanes, instruction)
    lanes.warp_store("i32", str(left.value), at.GROUPS_LEFT, 4)
    lanes.warp_store("i32", lanes.number(lanes.site(instruction), "i32"), at.BARRIER_SITE, 4)
    state = lanes.op(f"inttoptr i64 {lanes.slot('ASYNC_PROXY')} to ptr")
    held = lanes.op(f"getelementptr i8, ptr {state}, i64 {proxy.HELD}")
    lanes.do(f"store i64 ptrtoint (ptr {HELD} to i64), ptr {held}")


def _end(instruction: Instruction, word: str) -> None:
    form = Form(instruction)
    collective = form.flag(word), form.flag("sync"), form.flag("aligned")
    form.end()
    if not all(collective) or instruction.predicate is not None:
        raise instruction.unsupported()
    if word != "wait_group" and instruction.operands:
        raise instruction.unsupported("it has no operands")


@emits("wgmma.mma_async")
def mma_async(lanes: WarpEmitter, instruction: Instruction) -> None:
    """wgmma.mma_async.sync.aligned.m64nNkK.d.a.b d, a, b, whether D is added to {, signs of A, B {, turned A, B}}."""
    product, columns = _product(instruction)
    operands = instruction.operands
    if len(operands) < 4 or instruction.predicate is not None:
        raise instruction.unsupported("its operands do not fit its form")
    d, a, b, keeps, *rest = operands
    from_shared = not isinstance(a, Vector)
    if any(not isinstance(value, Imm) for value in rest):
        raise instruction.unsupported("its operands do not fit its form")
    flags = [value.value for value in rest if isinstance(value, Imm)]
    has_signs, has_turns = product.kind != "int8", product.kind in ("f16", "bf16")
    if len(flags) != 2 * has_signs + (1 + from_shared if has_turns else 0):
        raise instruction.unsupported("its operands do not fit its form")
    sign_a, sign_b, *turns = flags if has_signs else (1, 1)
    if not {sign_a, sign_b} <= {1, -1} or not set(turns) <= {0, 1}:
        raise instruction.unsupported("its operands do not fit its form")
    turned_a, turned_b = ([0] * (2 - len(turns)) + turns)[:2]
    registers = _registers(instruction, d, columns // 8 * product.layout.c.registers)
    places = [lanes.home(register) for register in registers]
    if isinstance(a, Vector):
        places += [lanes.home(register) for register in _registers(instruction, a, 4)]
    check_whole_warp(lanes, instruction)
    shape = len(registers) | product.layout.c.registers << proxy.SHAPE_SLICE | from_shared << proxy.SHAPE_SHARED_A
    shape |= _size_number(instruction) << proxy.SHAPE_SIZE
    shape |= turned_a << proxy.SHAPE_TURNED_A | turned_b << proxy.SHAPE_TURNED_B
    if sign_a != sign_b:
        shape |= _SIGN_BITS.get(product.kind, 0x80008000) << proxy.SHAPE_SIGNS
    function = f"@sandbox_{product.slice_name}"
    lanes.declarations.add(f"declare void {function}(i64)")
    lanes.called.add(product.slice_name)
    failed = lanes.runtime(
        "issue_product",
        "%ctx",
        "%warp",
        lanes.number(lanes.site(instruction)),
        f"ptrtoint (ptr {function} to i64)",
        lanes.argument("i64", f"ptrtoint (ptr {lanes.constant_words(places)} to i64)"),
        str(shape),
        _truth(lanes, keeps),
        _scalar(lanes, a) if from_shared else "0",
        _scalar(lanes, b),
        str(lanes.marks),
    )
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    for register in registers:
        lanes.changed_at_home(register)


def _product(instruction: Instruction) -> tuple[DotProduct | EightBitProduct, int]:
    """The arithmetic for 8 columns, and the number of columns."""
    form = Form(instruction)
    collective = form.flag("mma_async"), form.flag("sync"), form.flag("aligned")
    shape = matrix_shape(form.rest())
    if shape is None or shape.rows != 64 or not all(collective):
        raise instruction.unsupported()
    form.flag(shape.word)
    types = element_types(form)
    saturates = form.flag("satfinite")
    form.end()
    columns, depth = shape.columns, shape.depth
    if len(types) == 3 and columns in _COLUMNS:
        d, a, b = types
        narrow = eight_bits.WARPGROUP_PRODUCTS.get((a, b, depth, d, saturates))
        if narrow is not None and (narrow.kind == "fp8" or columns in _INTEGER_COLUMNS):
            return narrow, columns
        wide = WARPGROUP_PRODUCTS.get((a, depth, d))
        if wide is not None and a == b and not saturates:
            return wide, columns
    raise instruction.unsupported("there is no such combination of shape and types")


def _size_number(instruction: Instruction) -> int:
    """A nonzero ID of the shape M, N, K."""
    shape = matrix_shape(instruction.modifiers)
    assert shape is not None
    return 4 * (shape.columns // 8 - 1) + (8, 16, 32).index(shape.depth) + 1


def _registers(instruction: Instruction, operand: Operand, count: int) -> tuple[Operand, ...]:
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise instruction.unsupported("its operands do not fit its form")
    return operand.items


def _scalar(lanes: WarpEmitter, operand: Operand) -> str:
    return lanes.op(f"extractelement <32 x i64> {lanes.use(operand, 'i64')}, i32 0")


def _truth(lanes: WarpEmitter, operand: Operand) -> str:
    """A predicate that is uniform over lanes, or a literal, as i64."""
    if isinstance(operand, Imm):
        return str(int(operand.value != 0))
    first = lanes.op(f"extractelement <32 x i1> {lanes.use(operand, 'i1')}, i32 0")
    return lanes.op(f"zext i1 {first} to i64")


def name_held_tickets(lanes: WarpEmitter, function: Function) -> None:
    """Define `HELD`: the number of registers that may hold tickets, and their locations."""
    places = [lanes.place(name) for name in registers_with_tickets(function)]
    words = ", ".join(f"i32 {word}" for word in (len(places), *places))
    lanes.constants[f"[{len(places) + 1} x i32] [{words}]"] = HELD


def registers_with_tickets(function: Function) -> list[str]:
    """Accumulators, and the registers that they are moved to."""
    moves: dict[str, list[str]] = {}
    found: dict[str, None] = {}
    for instruction in function.instructions():
        if instruction.row_name == "wgmma.mma_async" and isinstance(instruction.operands[0], Vector):
            found |= {item.name: None for item in instruction.operands[0].items if isinstance(item, Reg)}
        elif instruction.opcode == "mov" and len(instruction.operands) == 2:
            target, source = instruction.operands
            if isinstance(target, Reg) and isinstance(source, Reg):
                moves.setdefault(source.name, []).append(target.name)
    waiting = list(found)
    while waiting:
        for name in moves.get(waiting.pop(), ()):
            if name not in found:
                found[name] = None
                waiting.append(name)
    return list(found)


@emits("setmaxnreg")
def set_registers(lanes: WarpEmitter, instruction: Instruction) -> None:
    """setmaxnreg.{inc,dec}.sync.aligned.u32 n: notes the number, since the emulator does not limit registers."""
    form = Form(instruction)
    words = form.choice("inc", "dec"), form.flag("sync"), form.flag("aligned")
    form.type("u32")
    form.end()
    count = instruction.operands[0] if len(instruction.operands) == 1 else None
    if not all(words) or not isinstance(count, Imm) or count.value not in range(24, 257, 8):
        raise instruction.unsupported("it takes a multiple of 8 from 24 to 256")
    check_whole_warp(lanes, instruction)
    lanes.warp_store("i32", str(count.value), at.REGISTER_COUNT, 4)
    lanes.warp_store("i32", lanes.number(lanes.site(instruction), "i32"), at.REGISTER_SITE, 4)
