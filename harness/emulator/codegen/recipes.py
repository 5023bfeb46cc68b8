"""Instructions that are emitted alike: what one came to, for those that differ from it in their registers alone.

Arithmetic depends on its form and on what its operands are. Two instructions of one form, whose registers have the same
types and are the same one where they are, and whose constants are equal, make one function of `outlining`, and hand it
the places of their registers in one order. A kernel of thousands of them has some hundred that are not like another.
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
"""The opcodes that loops consist of. What they emit hangs on nothing but form, operands and registers' types; of others
it may also hang on what was emitted before, or be known to the runtime by its number."""


@dataclass(frozen=True)
class Recipe:
    """What an instruction came to."""

    function: str | None
    """Name of the function; None where there is nothing to do."""
    arguments: tuple[int | str, ...]
    """The number of a register, whose place it is, or a constant."""
    touched: tuple[int, ...]
    """Numbers of the registers, in the order in which they were given places."""


class Likeness:
    """Tells which instructions of one kernel are alike."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers
        self._kinds: dict[str, Hashable] = {}
        """Register -> all that its code depends on."""

    def of(self, instruction: Instruction) -> tuple[Hashable, tuple[str, ...]] | None:
        """What all instructions like this one have in common, and its registers; None where that is not known."""
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
