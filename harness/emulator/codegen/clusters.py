"""Clusters of blocks (PTX ISA 9.7.9.24 f.). Here every block is one by itself, so that its rank is 0."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.forms import Form
from harness.emulator.codegen.lanes import Lanes
from harness.emulator.codegen.vocabulary import INTEGER, splat
from harness.emulator.ptx.instructions import Instruction


@emits("mapa")
def map_address(lanes: Lanes, instruction: Instruction) -> None:
    """mapa{.shared::cluster} d, address, rank: the same place in the shared memory of another block."""
    form = Form(instruction)
    form.flag("shared::cluster")
    element = INTEGER[form.type("u32 u64").bits]
    form.end()
    destination, address, rank = instruction.operands
    others = lanes.compare("ne", "i32", lanes.use(rank, "i32"), splat("i32", 0))
    lanes.check(lanes.bits_of(lanes.binary("and", "i1", others, lanes.active())), "cluster rank", instruction)
    lanes.put(destination, lanes.use(address, element), element)
