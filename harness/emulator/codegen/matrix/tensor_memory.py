"""Emits allocation of tensor memory, and its loads and stores (PTX ISA 9.7.16.7 and 9.7.16.8).

`memory/tensor_memory/cells.py` implements them.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.asynchronous.mbarriers import SHARED_SPACES
from harness.emulator.codegen.instructions.memory import generic_addresses
from harness.emulator.codegen.instructions.warp import check_whole_warp
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Function, Imm, Instruction, Module, Operand, Vector
from harness.ptx.targets import Target

_SHAPES = {
    "32x32b": (tensor.WHOLE, 1), "16x64b": (tensor.OF_64, 1), "16x128b": (tensor.OF_128, 2),
    "16x256b": (tensor.OF_256, 4), "16x32bx2": (tensor.TWO_HALVES, 1),
}  # fmt: skip
"""By shape: its number, and the registers of `.x1`."""
_NUMBERS = {f"x{count}": count for count in (1, 2, 4, 8, 16, 32, 64, 128)}
_MOST_REGISTERS = 128
_MAJOR_VERSIONS = (10, 11)
"""Major compute capabilities with tensor memory."""
_NOT_OF_FAMILIES = frozenset(("shift", "kind::i8", "scale_vec::1X", "scale_vec::2X", "scale_vec::4X"))
"""Modifiers that targets such as `sm_100f` do not have."""


def require_tensor_cores(module: Module, function: Function) -> None:
    """Raise `UnsupportedInstruction` if a function has `tcgen05` and its module's target does not."""
    target = Target.named(module.target)
    suffix = target.suffix if target is not None and target.number // 10 in _MAJOR_VERSIONS else ""
    if suffix == "a":
        return
    for instruction in function.instructions():
        if instruction.opcode != "tcgen05":
            continue
        if not suffix:
            raise instruction.unsupported(f"it needs '.target sm_100a' or 'sm_100f', and this is {module.target}")
        if not _NOT_OF_FAMILIES.isdisjoint(instruction.modifiers):
            raise instruction.unsupported(f"it needs '.target sm_100a', and this is {module.target}")


def take_pair(form: Form, instruction: Instruction) -> int:
    """Consume `.cta_group`: 1 if two blocks take part, else 0."""
    group = form.choice("cta_group::1", "cta_group::2")
    if group is None:
        raise instruction.unsupported("it needs '.cta_group::1' or '.cta_group::2'")
    return int(group == "cta_group::2")


def _common(lanes: WarpEmitter, instruction: Instruction, value: str) -> str:
    """The value, i32, that all lanes of the warp have, as i64. It is a fault if they differ."""
    first = lanes.op(f"extractelement {vector('i32')} {value}, i32 0")
    others = lanes.bits_of(lanes.compare("ne", "i32", value, lanes.spread("i32", first)))
    lanes.check(others, "lanes disagree", instruction)
    return lanes.widen(first)


def _begin(lanes: WarpEmitter, instruction: Instruction, word: str) -> Form:
    """Consume the modifiers of an operation of a whole warp."""
    form = Form(instruction)
    words = form.flag(word), form.flag("sync"), form.flag("aligned")
    if not all(words) or instruction.predicate is not None:
        raise instruction.unsupported()
    check_whole_warp(lanes, instruction)
    return form


def _site(lanes: WarpEmitter, instruction: Instruction) -> str:
    return lanes.number(lanes.site(instruction))


def _stop_if(lanes: WarpEmitter, failed: str) -> None:
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


@emits("tcgen05.alloc")
def allocate(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32 [place], columns: the warp waits for the scheduler."""
    place, columns = instruction.operands
    form = _begin(lanes, instruction, "alloc")
    pair = take_pair(form, instruction)
    space = form.choice(*SHARED_SPACES)
    form.type("b32")
    form.end()
    lanes.warp_store(vector("i64"), generic_addresses(lanes, place, space or "generic"), at.ADDRESSES)
    count = _common(lanes, instruction, lanes.use(columns, "i32"))
    _stop_if(lanes, lanes.runtime("begin_allocation", "%ctx", "%warp", _site(lanes, instruction), count, str(pair)))


@emits("tcgen05.dealloc")
def free(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.dealloc.cta_group.sync.aligned.b32 address, columns."""
    form = _begin(lanes, instruction, "dealloc")
    address, columns = (_common(lanes, instruction, lanes.use(operand, "i32")) for operand in instruction.operands)
    take_pair(form, instruction)
    form.type("b32")
    form.end()
    _stop_if(lanes, lanes.runtime("free_tensor", "%ctx", _site(lanes, instruction), address, columns))


@emits("tcgen05.relinquish_alloc_permit")
def relinquish(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.relinquish_alloc_permit.cta_group.sync.aligned."""
    form = _begin(lanes, instruction, "relinquish_alloc_permit")
    take_pair(form, instruction)
    form.end()
    lanes.runtime("relinquish_tensor", "%ctx", _site(lanes, instruction))


@emits("tcgen05.wait::ld", "tcgen05.wait::st")
def wait(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.wait::ld.sync.aligned, tcgen05.wait::st.sync.aligned."""
    _begin(lanes, instruction, instruction.modifiers[0]).end()
    lanes.runtime("wait_for_tensor", "%ctx", str(int(instruction.modifiers[0] == "wait::st")))


@emits("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def fence(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.fence::before_thread_sync, tcgen05.fence::after_thread_sync: operations execute in their order here."""
    form = Form(instruction)
    form.flag(instruction.modifiers[0])
    form.end()


@emits("tcgen05.ld")
def load(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.ld.sync.aligned.shape.num{.pack::16b}.b32 {registers}, [address] {, distance of the halves}."""
    registers, address, *rest = instruction.operands
    form = _begin(lanes, instruction, "ld")
    _access(lanes, instruction, form, form.flag("pack::16b"), registers, address, rest)


@emits("tcgen05.st")
def store(lanes: WarpEmitter, instruction: Instruction) -> None:
    """tcgen05.st.sync.aligned.shape.num{.unpack::16b}.b32 [address] {, distance of the halves}, {registers}."""
    address, *rest, registers = instruction.operands
    form = _begin(lanes, instruction, "st")
    _access(lanes, instruction, form, form.flag("unpack::16b"), registers, address, rest)


def _access(
    lanes: WarpEmitter,
    instruction: Instruction,
    form: Form,
    packed: bool,
    registers: Operand,
    address: Operand,
    rest: list[Operand],
) -> None:
    shape, number = form.choice(*_SHAPES), form.choice(*_NUMBERS)
    form.type("b32")
    form.end()
    if shape is None or number is None:
        raise instruction.unsupported("there is no such combination of shape and number")
    kind, each = _SHAPES[shape]
    count = each * _NUMBERS[number]
    items = registers.items if isinstance(registers, Vector) else (registers,)
    half = rest[0] if rest else None
    if count > _MOST_REGISTERS or len(items) != count or (half is not None) != (kind == tensor.TWO_HALVES):
        raise instruction.unsupported("its operands do not fit its form")
    if half is not None and not isinstance(half, Imm):
        raise instruction.unsupported("the distance of its halves has to be a constant")
    places = [lanes.home(item) for item in items]
    word = kind << tensor.FORM_SHAPE | int(packed) << tensor.FORM_PACKED | count << tensor.FORM_REGISTERS
    word |= (half.value & 0xFFFF if isinstance(half, Imm) else 0) << tensor.FORM_HALF
    loads = instruction.row_name == "tcgen05.ld"
    failed = lanes.runtime(
        "load_tensor" if loads else "store_tensor",
        "%ctx",
        "%warp",
        _site(lanes, instruction),
        _common(lanes, instruction, lanes.address(address, "i32")),
        str(word),
        lanes.argument("i64", f"ptrtoint (ptr {lanes.constant_words(places)} to i64)"),
    )
    _stop_if(lanes, failed)
    if loads:
        for item in items:
            lanes.changed_at_home(item)
