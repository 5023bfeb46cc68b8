"""Reuses emitted code for instructions that differ only in their registers.

The code of arithmetic depends on its form and on the kinds of its operands. Two instructions share one function of
`outlining` if they have the same form, their registers have the same types and coincide in the same positions, and
their constants are equal; they pass the locations of their registers in the same order. A kernel of thousands of
instructions has about a hundred distinct ones.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from harness.emulator.codegen.storage import Registers
from harness.ptx.instructions import Imm, Instruction, Not, Reg

_FAMILIES = frozenset({
    "abs", "add", "and", "cvt", "fma", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "selp", "setp", "shl",
    "shr", "sub", "xor",
})  # fmt: skip
"""The opcodes that loops mainly consist of. Their code depends only on form, operands and register types; that of
others may also depend on previously emitted code, or be referred to by number in the runtime."""


@dataclass(frozen=True)
class Recipe:
    """The emitted form of an instruction."""

    function: str | None
    """Name of the function; None if nothing is emitted."""
    arguments: tuple[int | str, ...]
    """Arguments: the index of a register, for its location, or a constant."""
    touched: tuple[int, ...]
    """Indices of the registers, in the order in which they were placed."""


class Likeness:
    """Determines which instructions of one kernel have the same code."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers
        self._kinds: dict[str, Hashable] = {}
        """The properties of a register on which code depends, by register."""

    def of(self, instruction: Instruction) -> tuple[Hashable, tuple[str, ...]] | None:
        """A key that is equal for instructions with the same code, and the instruction's registers.

        None if not known.
        """
        if instruction.opcode not in _FAMILIES:
            return None
        names: dict[str, int] = {}
        parts: list[Hashable] = [instruction.opcode, instruction.modifiers, instruction.negated]
        for operand in (instruction.predicate, *instruction.operands):
            kind = type(operand)
            if kind is Imm:
                parts.append(operand)
                continue
            if operand is None:
                parts.append(None)
                continue
            register = operand.reg if isinstance(operand, Not) else operand
            if not isinstance(register, Reg):
                return None
            described = self._kind(register.name)
            if described is None:
                return None
            parts += (kind is Not, described, names.setdefault(register.name, len(names)))
        return tuple(parts), tuple(names)

    def _kind(self, name: str) -> Hashable:
        found = self._kinds.get(name)
        if found is None and name in self._registers.types:
            registers = self._registers
            found = registers.types[name].name, name in registers.lasting, name in registers.flushed
            self._kinds[name] = found
        return found
