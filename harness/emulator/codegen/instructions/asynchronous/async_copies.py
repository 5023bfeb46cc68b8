"""Emits cp.async, its groups and its waits (PTX ISA 9.7.9.25.3); `memory/async_copies.py` implements them.

Copies that complete at an mbarrier are in `mbarriers.py`.
"""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.memory import count_shared, store_addresses
from harness.emulator.codegen.instrumentation.watched import watch_copy
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Address, Imm, Instruction, Operand

_SIZES = {"ca": (4, 8, 16), "cg": (16,)}
_PREFETCHES = ("L2::64B", "L2::128B", "L2::256B")


@emits("cp")
def asynchronous_copy(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.async, cp.async.commit_group and cp.async.wait_group."""
    form = Form(instruction)
    if not form.flag("async") or "bulk" in instruction.modifiers:
        raise instruction.unsupported("of asynchronous copies it knows cp.async with its groups and waits")
    what = form.choice("commit_group", "wait_group", "wait_all")
    if what is None:
        _issue(lanes, instruction, form)
        return
    form.end()
    mask = lanes.widen(lanes.active_bits())
    pending = 0
    if what == "wait_group":
        if len(instruction.operands) != 1 or not isinstance(instruction.operands[0], Imm):
            raise instruction.unsupported("it waits until a constant number of groups is left")
        pending = instruction.operands[0].value
    elif instruction.operands:
        raise instruction.unsupported("it has no operands")
    if what != "wait_group":
        lanes.runtime("commit_copies", "%ctx", mask)
    if what != "commit_group":
        lanes.runtime("wait_for_copies", "%ctx", mask, str(pending))


def _issue(lanes: WarpEmitter, instruction: Instruction, form: Form) -> None:
    """`[destination], [source], size {, bytes of the source, or a predicate to ignore it} {, cache policy}`."""
    cached = form.choice(*_SIZES)
    to_shared = form.choice("shared", "shared::cta")
    from_global = form.flag("global")
    # Prefetches and cache policies have no effect that a kernel can observe.
    form.choice(*_PREFETCHES)
    has_policy = form.flag("L2::cache_hint")
    form.end()
    destination, source, size, *more = (*instruction.operands, None, None, None)[: max(3, len(instruction.operands))]
    if cached is None or to_shared is None or not from_global or not isinstance(size, Imm):
        raise instruction.unsupported()
    if size.value not in _SIZES[cached]:
        raise instruction.unsupported(f"copies of {size.value} bytes")
    if len(more) - has_policy not in (0, 1) or not isinstance(destination, Address) or not isinstance(source, Address):
        raise instruction.unsupported("its operands do not fit its form")
    offsets = lanes.own_offsets(destination)
    wanted = _source_bytes(lanes, size.value, more[0] if len(more) > has_policy else None)
    addresses = lanes.address(source)
    mask = lanes.widen(lanes.active_bits())
    if lanes.instruments.bank_conflicts:
        lanes.warp_store(vector("i32"), offsets, at.ADDRESSES)
        count_shared(lanes, instruction, mask, size.value, generic=False)
    watch_copy(lanes, instruction, offsets, mask, size.value)
    lanes.warp_store(vector("i32"), offsets, at.DATA)
    lanes.warp_store(vector("i32"), wanted, at.DATA_2)
    store_addresses(lanes, addresses)
    site = lanes.number(lanes.site(instruction))
    failed = lanes.runtime("issue_copy", "%ctx", "%warp", site, mask, str(size.value), str(int(cached == "cg")))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


def _source_bytes(lanes: WarpEmitter, size: int, operand: Operand | None) -> str:
    """Number of bytes that each lane reads."""
    if operand is None:
        return splat("i32", size)
    if lanes.is_predicate(operand):
        return lanes.select("i32", lanes.use(operand, "i1"), splat("i32", 0), splat("i32", size))
    return lanes.use(operand, "i32")
