"""Traps, and the calls of the CUDA runtime's own functions. Branches and exits are in `kernel.py`."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.lanes import Lanes
from harness.ptx.instructions import Instruction, Symbol


@emits("trap")
def trap(lanes: Lanes, instruction: Instruction) -> None:
    """Stop the kernel."""
    lanes.check(lanes.active_bits(), "trap", instruction)


@emits("call")
def call(lanes: Lanes, instruction: Instruction) -> None:
    """A failed `assert` stops the kernel, and so does a `printf` that a thread comes to: it has nowhere to print."""
    target = instruction.operands[1]
    assert isinstance(target, Symbol)
    lanes.check(lanes.active_bits(), "trap" if target.name == "__assertfail" else "printing", instruction)


@emits("brkpt", "pmevent")
def no_effect(lanes: Lanes, instruction: Instruction) -> None:
    """For debuggers and profilers."""


@emits("griddepcontrol")
def overlap_launches(lanes: Lanes, instruction: Instruction) -> None:
    """griddepcontrol.{launch_dependents,wait}: launches do not overlap, and all before this one are over."""
    if instruction.modifiers not in (("launch_dependents",), ("wait",)) or instruction.operands:
        raise instruction.unsupported()
