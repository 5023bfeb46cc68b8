"""Emits cluster addresses (PTX ISA 9.7.9.23 f.) and the cluster barrier (9.7.13.3); see `runtime/clusters.py`."""

from __future__ import annotations

from harness.emulator.abi import layout as at
from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.instructions.warp import staying_lanes
from harness.emulator.codegen.vector_ir_builder import INTEGER, splat
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction

_OFFSET_IN_BLOCK = (1 << at.RANK_SHIFT) - 1


@emits("mapa")
def map_address(lanes: WarpEmitter, instruction: Instruction) -> None:
    """mapa{.shared::cluster} d, address, rank: the same offset in the shared memory of another block.

    A rank that the cluster lacks gives an address at which each access is a fault: compilers compute addresses for all
    lanes, of which only some access them.
    """
    form = Form(instruction)
    form.flag("shared::cluster")
    element = INTEGER[form.type("u32 u64").bits]
    form.end()
    destination, address, rank = instruction.operands
    ranks = lanes.use(rank, "i32")
    highest = splat("i32", (1 << (32 - at.RANK_SHIFT)) - 1)
    known = lanes.select("i32", lanes.compare("ult", "i32", ranks, highest), ranks, highest)
    tag = lanes.binary("shl", "i32", known, splat("i32", at.RANK_SHIFT))
    if element == "i64":
        tag = lanes.cast("zext", "i32", tag, "i64")
    without_rank = _OFFSET_IN_BLOCK if element == "i32" else ~(0xFFFFFFFF & ~_OFFSET_IN_BLOCK)
    rest = lanes.binary("and", element, lanes.use(address, element), splat(element, without_rank))
    lanes.put(destination, lanes.binary("or", element, rest, tag), element)


@emits("getctarank")
def rank_of_address(lanes: WarpEmitter, instruction: Instruction) -> None:
    """getctarank{.shared::cluster} d, address: rank of the block whose shared memory contains it."""
    form = Form(instruction)
    form.flag("shared::cluster")
    form.type("u32 u64")
    form.end()
    destination, address = instruction.operands
    rank = lanes.binary("lshr", "i32", lanes.use(address, "i32"), splat("i32", at.RANK_SHIFT))
    lanes.put(destination, rank, "i32")


@emits("barrier.cluster_arrive")
def arrive(lanes: WarpEmitter, instruction: Instruction) -> None:
    """barrier.cluster.arrive{.release, .relaxed}{.aligned}."""
    form = Form(instruction)
    words = form.flag("cluster"), form.flag("arrive")
    is_relaxed = form.choice("release", "relaxed") == "relaxed"
    form.flag("aligned")
    form.end()
    _at_barrier(lanes, instruction, all(words), "cluster_arrive", str(int(is_relaxed)))


@emits("barrier.cluster_wait")
def wait(lanes: WarpEmitter, instruction: Instruction) -> None:
    """barrier.cluster.wait{.acquire}{.aligned}: return to the scheduler, which suspends the warp."""
    form = Form(instruction)
    words = form.flag("cluster"), form.flag("wait")
    form.flag("acquire")
    form.flag("aligned")
    form.end()
    _at_barrier(lanes, instruction, all(words), "cluster_wait")


def _at_barrier(lanes: WarpEmitter, instruction: Instruction, is_whole: bool, function: str, *more: str) -> None:
    """All lanes of a warp that have not returned wait for each other (PTX ISA); here they have to arrive together."""
    if not is_whole or instruction.operands:
        raise instruction.unsupported()
    active = lanes.active_bits()
    some = lanes.op(f"icmp ne i32 {active}, 0")
    missing = lanes.op(f"and i32 {staying_lanes(lanes)}, {lanes.op(f'xor i32 {active}, -1')}")
    lanes.check(lanes.op(f"select i1 {some}, i32 {missing}, i32 0"), "divergent barrier", instruction)
    site = lanes.number(lanes.site(instruction))
    failed = lanes.runtime(function, "%ctx", "%warp", site, lanes.widen(active), *more)
    lanes.stop_if(lanes.op(f"icmp ne i64 {failed}, 0"))
