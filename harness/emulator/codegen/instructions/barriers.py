"""Emits barriers of a block and fences (PTX ISA 9.7.13.1 f., .4). An arriving warp returns to the scheduler."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.warp import check_members, staying_lanes
from harness.emulator.codegen.instrumentation.watched import (
    watch_fence,
    watch_map_fence,
    watch_proxy_fence,
    watch_warp_barrier,
)
from harness.emulator.codegen.vector_ir_builder import splat
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Imm, Instruction, Operand, Reg
from harness.ptx.opcodes import BARRIER_RESULT

_OPERANDS = {"sync": (1, 2), "arrive": (2,), "red": (3, 4)}
_VOTE_TYPES = {"popc": "u32", "and": "pred", "or": "pred"}


@emits("bar", "barrier")
def barrier(lanes: WarpEmitter, instruction: Instruction) -> None:
    """bar.{sync,arrive,red}: pass the barrier's number, thread count and vote to the scheduler."""
    form = Form(instruction)
    operands = list(instruction.operands)
    if form.flag("warp"):
        is_sync = form.flag("sync")
        form.end()
        if not is_sync or len(operands) != 1:
            raise instruction.unsupported()
        check_members(lanes, instruction, operands[0])
        watch_warp_barrier(lanes, operands[0])
        return
    form.flag("cta")
    form.flag("aligned")
    what = form.choice(*_OPERANDS)
    vote = form.choice(*_VOTE_TYPES)
    if vote is not None:
        form.type(_VOTE_TYPES[vote])
    form.end()
    if what is None or (what == "red") != (vote is not None) or len(operands) not in _OPERANDS[what]:
        raise instruction.unsupported()
    if instruction.predicate is not None:
        raise instruction.unsupported("a barrier under a predicate")
    predicate = None
    if what == "red":
        destination = operands.pop(0)
        if not isinstance(destination, Reg) or lanes.is_predicate(destination) != (vote != "popc"):
            raise instruction.unsupported("its operands do not fit its form")
        predicate = operands.pop()
    absent = lanes.op(f"xor i32 {lanes.mask}, -1")
    missing = lanes.op(f"and i32 {lanes.warp_load('i32', at.STARTED, 4)}, {absent}")
    if lanes.instruments.lenient:  # hardware does not wait for lanes that have returned
        lanes.runtime("note_absent", "%ctx", lanes.number(lanes.site(instruction)), lanes.widen(missing))
        missing = lanes.op(f"and i32 {staying_lanes(lanes)}, {absent}")
    lanes.check(missing, "divergent barrier", instruction)
    lanes.warp_store("i32", _scalar(lanes, operands[0]), at.BARRIER_ID, 4)
    lanes.warp_store("i32", _scalar(lanes, operands[1]) if len(operands) > 1 else "0", at.BARRIER_THREADS, 4)
    lanes.warp_store("i32", lanes.number(lanes.site(instruction), "i32"), at.BARRIER_SITE, 4)
    lanes.warp_store("i32", "1" if what == "arrive" else "0", at.BARRIER_ARRIVES, 4)
    if predicate is not None and vote is not None:
        lanes.warp_store("i32", lanes.bits_of(lanes.use(predicate, "i1")), at.VOTE_BITS, 4)
        lanes.warp_store("i32", str(at.VOTES[vote]), at.VOTE_KIND, 4)


def _scalar(lanes: WarpEmitter, operand: Operand) -> str:
    if isinstance(operand, Imm):
        return str(operand.value & at.FULL_MASK)
    return lanes.op(f"extractelement <32 x i32> {lanes.use(operand, 'i32')}, i32 {lanes.first_lane(lanes.mask)}")


@emits(BARRIER_RESULT)
def barrier_result(lanes: WarpEmitter, instruction: Instruction) -> None:
    """The result of the vote, in every lane."""
    result = lanes.spread("i32", lanes.warp_load("i32", at.VOTE_RESULT, 4))
    if "pred" in instruction.modifiers:
        lanes.put(instruction.operands[0], lanes.compare("ne", "i32", result, splat("i32", 0)), "i1")
    else:
        lanes.put(instruction.operands[0], result, "i32")


@emits("nanosleep")
def nanosleep(lanes: WarpEmitter, instruction: Instruction) -> None:
    """The warp yields to the others, since the block ends here."""


_SCOPES = ("cta", "cluster", "gpu", "sys")
_ORDERS = ("sc", "acq_rel", "acquire", "release")
_FENCES = (
    *((scope,) for scope in _SCOPES),
    *((order, scope) for order in _ORDERS for scope in _SCOPES),
    *((scope, order) for order in _ORDERS for scope in _SCOPES),  # undocumented; ptxas takes it, CUDA's headers use it
    ("mbarrier_init", "release", "cluster"),
    ("acquire", "sync_restrict::shared::cluster", "cluster"),
    ("release", "sync_restrict::shared::cta", "cluster"),
)
_MEMBARS = (("cta",), ("gl",), ("sys",))
_SHARED_PROXY_FENCES = (
    ("async",),
    ("async", "shared::cta"),
    ("async", "shared::cluster"),
    ("async::generic", "acquire", "sync_restrict::shared::cluster", "cluster"),
    ("async::generic", "release", "sync_restrict::shared::cta", "cluster"),
)
"""Suffixes of `.proxy` that include shared memory."""
_OTHER_PROXY_FENCES = (
    ("alias",),
    ("async", "global"),
    *(("tensormap::generic", order, scope) for order in ("release", "acquire") for scope in _SCOPES),
)


# Fences: only the sanitizer uses them. Warps of a block take turns, and their accesses happen in order; copies and
# products complete late regardless of fences. A copy uses its tensor map as of its issue. Aliased addresses (`alias`)
# are not supported, so proxy fences for them do nothing.
@emits("membar", "fence")
def fence(lanes: WarpEmitter, instruction: Instruction) -> None:
    """membar.level; membar.proxy.alias; fence{.sem}.scope; fence.proxy.*."""
    kind = tuple(instruction.modifiers)
    if kind[:1] != ("proxy",):
        if kind not in (_MEMBARS if instruction.opcode == "membar" else _FENCES) or instruction.operands:
            raise instruction.unsupported("there is no such fence")
        watch_fence(lanes, instruction)
        return
    kind = kind[1:]
    is_shared = kind in _SHARED_PROXY_FENCES
    if not (is_shared or kind in _OTHER_PROXY_FENCES) or (instruction.opcode == "membar" and kind != ("alias",)):
        raise instruction.unsupported("there is no such proxy")
    if len(instruction.operands) != (2 if kind[:2] == ("tensormap::generic", "acquire") else 0):
        raise instruction.unsupported("its operands do not fit its form")
    if is_shared:
        watch_proxy_fence(lanes)
    if kind[0] == "async::generic":  # it also releases, or acquires
        watch_fence(lanes, instruction)
    if instruction.operands:
        watch_map_fence(lanes, instruction.operands[0])
