"""Finds registers that never hold a subnormal float, so that `.ftz` need not check them again.

A register qualifies if everything that the function writes to it is flushed: a result of `.ftz` arithmetic on f32, a
literal that is not subnormal, or a copy of such a register. Registers are initialized to NaN.
"""

from __future__ import annotations

from harness.ptx.blocks import registers_of
from harness.ptx.instructions import Function, Imm, Instruction, Operand, Reg

_ARITHMETIC = {
    *("abs", "add", "cos", "div", "ex2", "fma", "lg2", "mad", "max", "min", "mul", "neg", "rcp", "rsqrt", "sin"),
    *("sqrt", "sub"),
}
"""Opcodes that flush their result under `.ftz`; see `floating`."""
_COPIES = {"mov": slice(1, 2), "selp": slice(1, 3)}
"""Operands that are copied to the result."""


def flushed_registers(function: Function) -> frozenset[str]:
    """Names of the flushed registers: the greatest fixed point, so that values carried around loops qualify."""
    if not any("ftz" in instruction.modifiers for instruction in function.instructions()):
        return frozenset()
    written: set[str] = set()
    doubtful: set[str] = set()
    copies: dict[str, set[str]] = {}
    for instruction in function.instructions():
        names = registers_of(instruction)[1]
        written |= names
        sources = _sources(instruction)
        if sources is None:
            doubtful |= names
            continue
        for source in sources:
            copies.setdefault(source, set()).update(names)
    doubtful |= copies.keys() - written  # special registers
    pending = list(doubtful)
    while pending:
        found = copies.get(pending.pop(), set()) - doubtful
        doubtful |= found
        pending += found
    return frozenset(written - doubtful)


def is_flushed(literal: Imm) -> bool:
    """Whether the literal, as f32, is not subnormal."""
    return literal.value == 0 or (literal.float_bits == 32 and literal.value & 0x7F800000 != 0)


def _sources(instruction: Instruction) -> list[str] | None:
    """The registers that the result is copied from, empty if it is flushed itself; None if it may be subnormal."""
    if instruction.opcode in _ARITHMETIC:
        return [] if instruction.modifiers[-1:] == ("f32",) and "ftz" in instruction.modifiers else None
    if instruction.opcode not in _COPIES or instruction.modifiers not in (("f32",), ("b32",)):
        return None
    copied = instruction.operands[_COPIES[instruction.opcode]]
    return [operand.name for operand in copied if isinstance(operand, Reg)] if all(map(_copied, copied)) else None


def _copied(operand: Operand) -> bool:
    return isinstance(operand, Reg) or (isinstance(operand, Imm) and is_flushed(operand))
