"""Proves, from the PTX, which array in shared memory an address belongs to.

An address belongs to an array if it is that array's symbol plus an expression without other symbols, along every path
on which its register is assigned: moves, conversions between address spaces and widths, additions, and selections of
such addresses. Any other operation on an address (XOR, AND, a difference, a shuffle, a mapping to another block) is
unproven, as is a sum of two addresses, or an address that was stored in memory.

An access outside of the array that its address provably belongs to is an error regardless of what lies there: neither
C++ nor PTX defines the order of arrays, so no compiler lets an index into one of them reach another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from harness.ptx.blocks import registers_of
from harness.ptx.instructions import Address, Function, Instruction, Operand, Reg, Symbol, Vector, names_in

Belongs = str | Literal[0, 1]
"""What a value belongs to: an array, by name, or one of these two constants."""
NO_ADDRESS: Literal[0] = 0
"""The value contains no symbol."""
UNPROVEN: Literal[1] = 1
"""The value may contain some symbol."""

_ADDRESS_TYPES = frozenset({"u32", "s32", "b32", "u64", "s64", "b64"})
"""A conversion between two of these types preserves an address."""
_STORES = frozenset({"st", "atom", "red", "st.async", "red.async", "stmatrix", "wmma.store"})
"""Rows of `OPCODES` that store registers to memory."""


def arrays_of_registers(function: Function, arrays: frozenset[str]) -> dict[str, str]:
    """The registers of a flat function that hold addresses in one of `arrays`, with that array's symbol.

    `arrays` are symbols in shared memory. A register belongs to an array if all values assigned to it do.
    """
    instructions = list(function.instructions())
    if not any(operand.name in arrays for i in instructions for operand in names_in(i) if isinstance(operand, Symbol)):
        return {}
    found = _Solution(instructions, arrays, loaded=NO_ADDRESS).found
    if any(_stores_an_address(instruction, found, arrays) for instruction in instructions):
        # A loaded value may be an address, or a difference of two.
        found = _Solution(instructions, arrays, loaded=UNPROVEN).found
    return {name: belongs for name, belongs in found.items() if isinstance(belongs, str)}


def _stores_an_address(instruction: Instruction, found: Mapping[str, Belongs], arrays: frozenset[str]) -> bool:
    if instruction.row_name not in _STORES:
        return False
    values = [operand for operand in instruction.operands if not isinstance(operand, Address)]
    named = [name for value in values for name in names_in(_holding(instruction, value))]
    return any(each.name in arrays or found.get(each.name, NO_ADDRESS) != NO_ADDRESS for each in named)


def _holding(instruction: Instruction, operand: Operand) -> Instruction:
    """An instruction with this operand only."""
    return Instruction(instruction.opcode, instruction.modifiers, (operand,), None, False, 0, None)


class _Solution:
    """The least fixed point: every register starts as unknown, and becomes less specific with each differing value."""

    def __init__(self, instructions: list[Instruction], arrays: frozenset[str], loaded: Belongs) -> None:
        """`loaded`: what values loaded from memory belong to, other than parameters."""
        self._arrays, self._loaded = arrays, loaded
        readers: dict[str, list[Instruction]] = {}
        for instruction in instructions:
            for name in registers_of(instruction)[0]:
                readers.setdefault(name, []).append(instruction)
        written = {name for instruction in instructions for name in registers_of(instruction)[1]}
        # Special registers, and registers that are never written.
        self.found: dict[str, Belongs] = dict.fromkeys(readers.keys() - written, NO_ADDRESS)
        pending = instructions[::-1]
        while pending:
            instruction = pending.pop()
            writes = registers_of(instruction)[1]
            belongs = self._result(instruction) if writes else None
            if belongs is None:
                continue
            for name in writes:
                before = self.found.get(name)
                after = belongs if before in (None, belongs) else UNPROVEN
                if after != before:
                    self.found[name] = after
                    pending += readers.get(name, ())

    def _result(self, instruction: Instruction) -> Belongs | None:
        """What the instruction's results belong to; None while its inputs are unknown."""
        row, modifiers, operands = instruction.row_name, instruction.modifiers, instruction.operands
        if instruction.facts.memory is not None:
            return NO_ADDRESS if row in ("ld", "ldu") and "param" in modifiers else self._loaded
        if isinstance(operands[0], Reg) and "cc" not in modifiers:
            sources = [self._operand(operand) for operand in operands[1:]]
            match row:
                case "mov" | "cvta" if not isinstance(operands[1], Vector):
                    return sources[0]
                case "cvt" if _ADDRESS_TYPES.issuperset(modifiers):
                    return sources[0]
                case "add.int":
                    return _sum(*sources)
                case "sub.int":
                    return _sum(*sources) if sources[1] in (None, NO_ADDRESS) else UNPROVEN
                case "mad.int" if "hi" not in modifiers:
                    return _sum(self._of_all(instruction, operands[1:3]), sources[2])
                case "selp":
                    first, second = sources[:2]
                    return first if second in (None, first) else second if first is None else UNPROVEN
        return self._of_all(instruction, operands[1:] if instruction.facts.writes else operands)

    def _operand(self, operand: Operand) -> Belongs | None:
        match operand:
            case Reg(name):
                return self.found.get(name)
            case Symbol(name):
                return name if name in self._arrays else UNPROVEN
            case _:
                return NO_ADDRESS

    def _of_all(self, instruction: Instruction, operands: tuple[Operand, ...]) -> Belongs | None:
        """What a value computed from these operands belongs to, if it is not an address."""
        read = [self._operand(each) for each in names_in(_holding(instruction, Vector(operands)))]
        if instruction.facts.updates or instruction.facts.reads_carry:
            read += [self.found.get(name) for name in registers_of(instruction)[0]]
        if any(each is not None and each != NO_ADDRESS for each in read):
            return UNPROVEN
        return None if None in read else NO_ADDRESS


def _sum(first: Belongs | None, second: Belongs | None) -> Belongs | None:
    if first is None or second is None:
        return None
    if second == NO_ADDRESS:
        return first
    return second if first == NO_ADDRESS else UNPROVEN
