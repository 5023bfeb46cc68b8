"""Emits operations on mbarrier objects (PTX ISA 9.7.13.15); `memory/mbarriers.py` implements them."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.abi.async_proxy_layout import COUNT_BITS
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.memory import generic_addresses
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import SINK, Instruction, Operand

SHARED_SPACES = ("shared", "shared::cta", "shared::cluster")
_ORDERS = ("release", "acquire", "relaxed")
_SCOPES = ("cta", "cluster")
_ARRIVES, _DROPS, _OWN = 1, 2, 4


def _begin(lanes: WarpEmitter, instruction: Instruction, place: Operand, others: bool = False) -> Form:
    """Consume the modifiers that all forms share, and store the barriers' addresses for the runtime.

    `others`: whether the barrier may be another block's.
    """
    form = Form(instruction)
    space = form.choice(*SHARED_SPACES)
    if space == "shared::cluster" and not others:
        raise instruction.unsupported("an mbarrier of another block is for arrivals and bytes alone")
    form.type("b64")
    lanes.warp_store(vector("i64"), generic_addresses(lanes, place, space or "generic"), at.ADDRESSES)
    return form


def _action(instruction: Instruction, *words: int) -> str:
    """The `action` argument of `mbarrier_arrive`."""
    is_own = {"shared", "shared::cta"} & set(instruction.modifiers)
    return str(sum(words) + (_OWN if is_own else 0))


def _call(lanes: WarpEmitter, instruction: Instruction, function: str, *more: str) -> str:
    mask = lanes.widen(lanes.active_bits())
    return lanes.runtime(function, "%ctx", "%warp", lanes.number(lanes.site(instruction)), mask, *more)


@emits("mbarrier.init", "mbarrier.inval")
def begin_or_end(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mbarrier.init [place], count; mbarrier.inval [place]."""
    operands = instruction.operands
    is_init = instruction.row_name == "mbarrier.init"
    if len(operands) != 1 + is_init:
        raise instruction.unsupported("its operands do not fit its form")
    form = _begin(lanes, instruction, operands[0])
    form.flag("init" if is_init else "inval")
    form.end()
    if is_init:
        lanes.warp_store(vector("i32"), lanes.use(operands[1], "i32"), at.DATA)
    failed = _call(lanes, instruction, "mbarrier_init" if is_init else "mbarrier_inval")
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


@emits("mbarrier.expect_tx", "mbarrier.complete_tx")
def count_bytes(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mbarrier.expect_tx [place], bytes."""
    place, size = instruction.operands
    form = _begin(lanes, instruction, place, others=True)
    form.flag("relaxed")
    form.choice(*_SCOPES)
    expects = form.choice("expect_tx", "complete_tx") == "expect_tx"
    form.end()
    more = lanes.use(size, "i32")
    if not expects:
        more = lanes.binary("sub", "i32", splat("i32", 0), more)
    lanes.warp_store(vector("i32"), more, at.DATA_2)
    failed = _call(lanes, instruction, "mbarrier_arrive", _action(instruction))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


@emits("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mbarrier.arrive{.expect_tx} state, [place] {, count or bytes}."""
    token, place, *number = instruction.operands
    form = _begin(lanes, instruction, place, others=True)
    if "shared::cluster" in instruction.modifiers and token != SINK:
        raise instruction.unsupported("an arrival in '.shared::cluster' gives no state; write _ for it")
    drops = form.choice("arrive", "arrive_drop") == "arrive_drop"
    expects = form.flag("expect_tx")
    # A no-complete arrival only asserts that it does not complete the phase; its effect is the same.
    form.flag("noComplete")
    form.choice(*_ORDERS)
    form.choice(*_SCOPES)
    form.end()
    if expects and not number:
        raise instruction.unsupported("its operands do not fit its form")
    value = lanes.use(number[0], "i32") if number else splat("i32", 1)
    lanes.warp_store(vector("i32"), splat("i32", 1) if expects else value, at.DATA)
    lanes.warp_store(vector("i32"), value if expects else splat("i32", 0), at.DATA_2)
    failed = _call(lanes, instruction, "mbarrier_arrive", _action(instruction, _ARRIVES, _DROPS if drops else 0))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
    if token != SINK:
        lanes.put(token, lanes.warp_load(vector("i64"), at.DATA_3), "i64")


@emits("cp.mbarrier")
def arrive_with_copies(lanes: WarpEmitter, instruction: Instruction) -> None:
    """cp.async.mbarrier.arrive{.noinc} [place]: arrive when the thread's copies so far have landed, here at once.

    Without `.noinc` the phase expects one more arrival, which is this one.
    """
    form = _begin(lanes, instruction, instruction.operands[0])
    words = form.flag("async"), form.flag("mbarrier"), form.flag("arrive")
    action = _action(instruction, _ARRIVES if form.flag("noinc") else 0)
    form.end()
    if not all(words):
        raise instruction.unsupported()
    mask = lanes.widen(lanes.active_bits())
    lanes.runtime("commit_copies", "%ctx", mask)
    lanes.runtime("wait_for_copies", "%ctx", mask, "0")
    lanes.warp_store(vector("i32"), splat("i32", 1), at.DATA)
    lanes.warp_store(vector("i32"), splat("i32", 0), at.DATA_2)
    failed = _call(lanes, instruction, "mbarrier_arrive", action)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


@emits("mbarrier.test_wait", "mbarrier.try_wait")
def wait(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mbarrier.try_wait{.parity} done, [place], phase {, time limit}. The warp then yields to the others."""
    done, place, phase, *_ = instruction.operands
    form = _begin(lanes, instruction, place)
    tries = form.choice("test_wait", "try_wait") == "try_wait"
    by_parity = form.flag("parity")
    form.choice(*_ORDERS)
    form.choice(*_SCOPES)
    form.end()
    if len(instruction.operands) == 4 and not tries:
        raise instruction.unsupported("its operands do not fit its form")
    if by_parity:
        lanes.warp_store(vector("i32"), lanes.use(phase, "i32"), at.DATA)
    else:
        lanes.warp_store(vector("i64"), lanes.use(phase, "i64"), at.DATA_3)
    found = _call(lanes, instruction, "mbarrier_wait", str(int(by_parity)))
    lanes.stop_if(lanes.op(f"icmp slt i64 {found}, 0"))
    lanes.put(done, lanes.lanes_of(lanes.op(f"trunc i64 {found} to i32")), "i1")


@emits("mbarrier.pending_count")
def pending_count(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mbarrier.pending_count.b64 count, state."""
    count, token = instruction.operands
    form = Form(instruction)
    form.flag("pending_count")
    form.type("b64")
    form.end()
    pending = lanes.binary("and", "i64", lanes.use(token, "i64"), splat("i64", (1 << COUNT_BITS) - 1))
    lanes.put(count, lanes.cast("trunc", "i64", pending, "i32"), "i32")
