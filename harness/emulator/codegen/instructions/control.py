"""Emits traps, and instructions without an effect. Branches and exits are in `kernel.py`."""

from __future__ import annotations

from harness.emulator.codegen.emitters import emits
from harness.emulator.codegen.instrumentation.watched import watch_grid_wait
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.instructions import Instruction


@emits("trap")
def trap(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Stop the kernel."""
    lanes.check(lanes.active_bits(), "trap", instruction)


@emits("brkpt", "pmevent")
def no_effect(lanes: WarpEmitter, instruction: Instruction) -> None:
    """Instructions for debuggers and profilers, which do nothing."""


@emits("griddepcontrol")
def overlap_launches(lanes: WarpEmitter, instruction: Instruction) -> None:
    """griddepcontrol.{launch_dependents,wait}: launches run one after the other, and have ended by any wait.

    Only the sanitizer needs to know of the wait. The signal makes nothing visible (PTX ISA, griddepcontrol).
    """
    if instruction.modifiers not in (("launch_dependents",), ("wait",)) or instruction.operands:
        raise instruction.unsupported()
    if instruction.modifiers == ("wait",):
        watch_grid_wait(lanes)
