"""Emits calls of the functions that the CUDA runtime provides to kernels: printf, assert, malloc and free."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.vector_ir_builder import vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction


@emits("call.vprintf")
def print_text(lanes: WarpEmitter, instruction: Instruction) -> None:
    """call.vprintf count, format, arguments: addresses of the text and of the arguments' memory."""
    count, text, arguments = instruction.operands
    lanes.warp_store(vector("i64"), lanes.use(text, "i64"), at.ADDRESSES)
    lanes.warp_store(vector("i64"), lanes.use(arguments, "i64"), at.DATA)
    _call(lanes, instruction, "print_text")
    lanes.put(count, lanes.warp_load(vector("i32"), at.DATA_2), "i32")


@emits("call.__assertfail")
def fail_assertion(lanes: WarpEmitter, instruction: Instruction) -> None:
    """call.__assertfail message, file, line, function, character size: stop the kernel."""
    message, file, line, function, _ = instruction.operands
    for operand, place in ((message, at.ASSERTION_MESSAGE), (file, at.ASSERTION_FILE), (function, at.ASSERTION_NAME)):
        lanes.warp_store(vector("i64"), lanes.use(operand, "i64"), place)
    lanes.warp_store(vector("i32"), lanes.use(line, "i32"), at.ASSERTION_LINE)
    lanes.check(lanes.active_bits(), "assertion", instruction)


@emits("call.malloc")
def allocate(lanes: WarpEmitter, instruction: Instruction) -> None:
    """call.malloc address, bytes."""
    address, size = instruction.operands
    lanes.warp_store(vector("i64"), lanes.use(size, "i64"), at.DATA)
    _call(lanes, instruction, "allocate")
    lanes.put(address, lanes.warp_load(vector("i64"), at.ADDRESSES), "i64")


@emits("call.free")
def free(lanes: WarpEmitter, instruction: Instruction) -> None:
    """call.free address."""
    lanes.warp_store(vector("i64"), lanes.use(instruction.operands[0], "i64"), at.ADDRESSES)
    _call(lanes, instruction, "free_memory")


@emits("call.nowhere")
def call_nowhere(lanes: WarpEmitter, instruction: Instruction) -> None:
    """call.nowhere address: a fault."""
    addresses = lanes.use(instruction.operands[0], "i64")
    active = lanes.active_bits()
    first = lanes.op(f"extractelement <32 x i64> {addresses}, i32 {lanes.first_lane(active)}")
    lanes.check(active, "no function", instruction, lanes.op(f"trunc i64 {first} to i32"))


@emits("call.overflow")
def overflow(lanes: WarpEmitter, instruction: Instruction) -> None:
    """call.overflow: the stack of recursive calls is full."""
    lanes.check(lanes.active_bits(), "stack overflow", instruction)


def _call(lanes: WarpEmitter, instruction: Instruction, function: str) -> None:
    """Call a function of the runtime for the active lanes; it may fault."""
    mask, site = lanes.widen(lanes.active_bits()), lanes.number(lanes.site(instruction))
    failed = lanes.runtime(function, "%ctx", "%warp", site, mask)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
