"""Emits clusterlaunchcontrol (PTX ISA 9.7.13.17 f.); `memory/launch_control.py` implements its requests."""

from __future__ import annotations

from harness.emulator.abi import launch_control_layout as control
from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.memory import generic_addresses
from harness.emulator.codegen.vector_ir_builder import splat, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Function, Instruction, Module, Vector
from harness.ptx.targets import Target

_FIRST_TARGET = 100
_TO_ALL = "multicast::cluster::all"
_COORDINATES = {"x": 0, "y": control.Y_AT, "z": control.Z_AT}
"""Where a coordinate begins in the low half of a response."""


def require_launch_control(module: Module, function: Function) -> None:
    """Raise `UnsupportedInstruction` if a function has `clusterlaunchcontrol` and its module's target does not."""
    target = Target.named(module.target)
    for instruction in function.instructions():
        if instruction.opcode != "clusterlaunchcontrol" or target is None:
            continue
        if target.number < _FIRST_TARGET:
            raise instruction.unsupported(f"it needs '.target sm_100' or later, and this is {module.target}")
        if _TO_ALL in instruction.modifiers and not target.suffix:
            raise instruction.unsupported(f"it needs '.target sm_100a' or 'sm_100f', and this is {module.target}")


@emits("clusterlaunchcontrol.try_cancel")
def try_cancel(lanes: WarpEmitter, instruction: Instruction) -> None:
    """clusterlaunchcontrol.try_cancel.async{.shared::cta}.mbarrier::complete_tx::bytes{.multicast::cluster::all}.b128.

    Operands: [response], [mbarrier].
    """
    form = Form(instruction)
    words = [form.flag(word) for word in ("try_cancel", "async", "mbarrier::complete_tx::bytes")]
    space = form.choice("shared::cta") or "generic"
    is_multicast = form.flag(_TO_ALL)
    form.type("b128")
    form.end()
    if not all(words):
        raise instruction.unsupported()
    response, barrier = instruction.operands
    lanes.warp_store(vector("i64"), generic_addresses(lanes, response, space), at.ADDRESSES)
    lanes.warp_store(vector("i64"), generic_addresses(lanes, barrier, space), at.HOSTS)
    mask, site = lanes.widen(lanes.active_bits()), lanes.number(lanes.site(instruction))
    failed = lanes.runtime("try_cancel", "%ctx", "%warp", site, mask, str(int(is_multicast)))
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))


@emits("clusterlaunchcontrol.query_cancel")
def query_cancel(lanes: WarpEmitter, instruction: Instruction) -> None:
    """clusterlaunchcontrol.query_cancel.

    .is_canceled.pred.b128 p, response; .get_first_ctaid.v4.b32.b128 {x, y, z, _}, response;
    .get_first_ctaid::x.b32.b128 x, response. The first block of a refused request is undefined, here with all bits set;
    asking for it is no fault, because schedulers read the whole response before they test it.
    """
    form = Form(instruction)
    form.flag("query_cancel")
    asks = form.choice("is_canceled", "get_first_ctaid", *(f"get_first_ctaid::{axis}" for axis in _COORDINATES))
    is_vector = form.flag("v4")
    types = [kind.name for kind in form.types()]
    form.end()
    destination, response = instruction.operands
    result = "pred" if asks == "is_canceled" else "b32"
    if asks is None or is_vector != (asks == "get_first_ctaid") or types != [result, "b128"]:
        raise instruction.unsupported()
    items = destination.items if isinstance(destination, Vector) else ()
    if len(items) != (4 if is_vector else 0) or not lanes.has_128_bits(response):
        raise instruction.unsupported("its operands do not fit its form")
    whole = lanes.use(response, "i128")
    high = lanes.cast("trunc", "i128", lanes.binary("lshr", "i128", whole, splat("i128", 64)), "i64")
    low = lanes.cast("trunc", "i128", whole, "i64")
    head = lanes.binary("and", "i64", high, splat("i64", ~1))
    _require(lanes, instruction, lanes.compare("eq", "i64", head, splat("i64", control.MAGIC)), "no response")
    is_canceled = lanes.cast("trunc", "i64", high, "i1")
    if asks == "is_canceled":
        lanes.put(destination, is_canceled, "i1")
        return
    if is_vector:
        for item, axis in zip(items, _COORDINATES):
            lanes.put(item, _coordinate(lanes, low, axis), "i32")
        lanes.put(items[3], splat("i32", -1), "i32")  # unspecified
    else:
        lanes.put(destination, _coordinate(lanes, low, asks.rpartition(":")[2]), "i32")


def _require(lanes: WarpEmitter, instruction: Instruction, holds: str, fault: str) -> None:
    """Fault in the active lanes in which the condition does not hold."""
    fails = lanes.op(f"xor i32 {lanes.bits_of(holds)}, -1")
    lanes.check(lanes.op(f"and i32 {fails}, {lanes.active_bits()}"), fault, instruction)


def _coordinate(lanes: WarpEmitter, low: str, axis: str) -> str:
    """One coordinate, i32, from the low half of a response."""
    start = _COORDINATES[axis]
    if not start:
        return lanes.cast("trunc", "i64", low, "i32")
    moved = lanes.binary("lshr", "i64", low, splat("i64", start))
    mask = splat("i64", (1 << control.COORDINATE_BITS) - 1)
    return lanes.cast("trunc", "i64", lanes.binary("and", "i64", moved, mask), "i32")
