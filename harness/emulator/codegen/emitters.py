"""Registry of emitters: maps a row of the opcode table to the function that emits its code."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from harness.ptx.instructions import Instruction
from harness.ptx.opcodes import OPCODES

if TYPE_CHECKING:
    from harness.emulator.codegen.warp_emitter import WarpEmitter

Emitter = Callable[["WarpEmitter", Instruction], None]


_EMITTERS: dict[str, Emitter] = {}
_FAMILIES = {
    "instructions": (
        "integer floating float_pairs halves bits video compare convert memory "
        "atomics warp barriers clusters control system_calls textures"
    ),
    "instructions.asynchronous": "async_copies mbarriers bulk_copies tensor_maps launch_control",
    "matrix": "matrix_memory matrix_multiply wmma warpgroup tensor_memory tensor_products",
}
"""Modules that register emitters, by package."""


def emits(*names: str) -> Callable[[Emitter], Emitter]:
    """Decorator that registers an emitter for rows of `ptx.opcodes.OPCODES`, by name."""

    def register(emitter: Emitter) -> Emitter:
        for name in names:
            assert name in OPCODES and name not in _EMITTERS, name
            _EMITTERS[name] = emitter
        return emitter

    return register


def emitter_for(instruction: Instruction) -> Emitter:
    """The emitter of an instruction.

    Raises `UnsupportedInstruction` if there is none, or if the number of operands does not match the form.
    """
    _load_families()
    found = _EMITTERS.get(instruction.row_name)
    if found is None:
        raise instruction.unsupported()
    expected = instruction.facts.operands
    if expected and len(instruction.operands) not in expected:
        raise instruction.unsupported(f"a form with {len(instruction.operands)} operands")
    return found


@lru_cache(maxsize=1)
def _load_families() -> None:
    for package, families in _FAMILIES.items():
        for family in families.split():
            import_module(f"harness.emulator.codegen.{package}.{family}")


def supported_opcodes() -> list[str]:
    """Names of the rows that have an emitter."""
    _load_families()
    return sorted(_EMITTERS)
