"""Opcode -> emitter. Opcodes that integers, floats and 16-bit floats share are told apart by their type."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from harness.emulator.ptx.instructions import Instruction
from harness.emulator.ptx.types import TYPES

if TYPE_CHECKING:
    from harness.emulator.codegen.lanes import Lanes

Emitter = Callable[["Lanes", Instruction], None]


class _Entry(NamedTuple):
    emitter: Emitter
    operands: tuple[int, ...]
    """How many operands the opcode may have; empty where the emitter itself looks."""


_EMITTERS: dict[str, _Entry] = {}
_FAMILIES = (
    "integer",
    "floating",
    "halves",
    "bits",
    "compare",
    "convert",
    "memory",
    "async_copies",
    "atomics",
    "warp",
    "barriers",
    "matrix_memory",
    "matrix_multiply",
    "wmma",
    "control",
)


def emits(*opcodes: str, operands: int | tuple[int, ...] = ()) -> Callable[[Emitter], Emitter]:
    """Register an emitter. `add.int`, `add.float`, `add.half` are the three kinds of one opcode.

    `operands` is how many operands these opcodes have, the destination included; any other number is refused.
    """

    def register(emitter: Emitter) -> Emitter:
        for opcode in opcodes:
            assert opcode not in _EMITTERS, opcode
            _EMITTERS[opcode] = _Entry(emitter, (operands,) if isinstance(operands, int) else operands)
        return emitter

    return register


def emitter_for(instruction: Instruction) -> Emitter:
    """The emitter of an instruction.

    Raises `UnsupportedInstruction` where there is none, or where the number of operands is not the form's.
    """
    _load_families()
    found = _EMITTERS.get(instruction.opcode) or _EMITTERS.get(f"{instruction.opcode}.{_kind(instruction)}")
    if found is None:
        raise instruction.unsupported()
    if found.operands and len(instruction.operands) not in found.operands:
        raise instruction.unsupported(f"a form with {len(instruction.operands)} operands")
    return found.emitter


@lru_cache(maxsize=1)
def _load_families() -> None:
    for family in _FAMILIES:
        import_module(f"harness.emulator.codegen.{family}")


def _kind(instruction: Instruction) -> str:
    types = [TYPES[m] for m in instruction.modifiers if m in TYPES]
    if not types or not types[0].is_float:
        return "int"
    return "half" if types[0].bits == 16 else "float"


def supported_opcodes() -> list[str]:
    """Every opcode that has an emitter."""
    _load_families()
    return sorted(_EMITTERS)
