"""Replaces `.param` variables of inlined calls by registers.

Before: a function without calls, in which `st.param` and `ld.param` on its own variables transfer values. After: these
are register moves. A variable of which only whole 16- to 64-bit values are written and read gets one register for each.
Where widths are mixed within 8 bytes, or single bytes are transferred, these 8 bytes are one register, accessed by bit
fields. A variable whose address is taken is placed in local memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.ptx.instructions import Address, Function, Imm, Instruction, Operand, Reg, Symbol, Vector
from harness.ptx.types import TYPES, PtxType

_CHUNK_BYTES = 8


def lower_call_parameters(function: Function) -> None:
    """Replace `.param` variables of inlined calls by registers, in place."""
    names = {v.name for v in function.variables.values() if v.space == "param"}
    if not names:
        return
    addressed = {name for i in function.instructions() for name in _addressed(i) if name in names}
    for name in addressed:
        function.variables[name] = replace(function.variables[name], space="local")
    mixed = _mixed_chunks(function, names - addressed)
    body = function.body or []
    function.body = []
    for statement in body:
        access = _access(statement) if isinstance(statement, Instruction) else None
        if isinstance(statement, Instruction) and access is not None and access[0] in names - addressed:
            function.body += _moves(function, statement, mixed)
        elif isinstance(statement, Instruction) and access is not None and access[0] in addressed:
            words = tuple("local" if word == "param" else word for word in statement.modifiers)
            function.body.append(replace(statement, modifiers=words))
        elif isinstance(statement, Instruction) and addressed.intersection(_addressed(statement)):
            function.body.append(replace(statement, opcode="cvta", modifiers=("local", "u64")))
        else:
            function.body.append(statement)


def holds_parameter(register: str) -> bool:
    """Whether `lower_call_parameters` created this register. Register names in PTX contain no plus sign."""
    return "+" in register


def _access(instruction: Instruction) -> tuple[str, int] | None:
    """Return variable and offset of a `st.param` or `ld.param`, or None for other instructions."""
    if instruction.opcode not in ("ld", "st") or "param" not in instruction.modifiers or len(instruction.operands) != 2:
        return None
    address = instruction.operands[0 if instruction.opcode == "st" else 1]
    if isinstance(address, Address) and isinstance(address.base, Symbol):
        return address.base.name, address.base.offset + address.offset
    return None


def _addressed(instruction: Instruction) -> Iterator[str]:
    """Yield the variables whose address the instruction takes."""
    if instruction.opcode in ("mov", "cvta"):
        yield from (operand.name for operand in instruction.operands if isinstance(operand, Symbol))


def _pieces(instruction: Instruction, offset: int, size_bytes: int) -> Iterator[tuple[int, PtxType, Operand]]:
    """Yield offset, type and value of each item that the instruction transfers.

    The variable that it accesses has `size_bytes` bytes.
    """
    kind = TYPES.get(instruction.modifiers[-1])
    if kind is None or kind.total_bits not in (8, 16, 32, 64):
        raise instruction.unsupported("a parameter of this type")
    value = instruction.operands[1 if instruction.opcode == "st" else 0]
    items = value.items if isinstance(value, Vector) else (value,)
    if offset < 0 or offset % kind.size_bytes or offset + len(items) * kind.size_bytes > size_bytes:
        raise instruction.unsupported(f"an offset of {offset} bytes into a parameter of {size_bytes}")
    for index, item in enumerate(items):
        yield offset + index * kind.size_bytes, kind, item


def _mixed_chunks(function: Function, names: set[str]) -> set[tuple[str, int]]:
    """Return the 8-byte chunks that are written or read in pieces of several widths, or in single bytes."""
    widths: dict[tuple[str, int], set[int]] = {}
    for instruction in function.instructions():
        access = _access(instruction)
        if access is not None and access[0] in names:
            for offset, kind, _ in _pieces(instruction, access[1], function.variables[access[0]].size_bytes):
                widths.setdefault((access[0], offset // _CHUNK_BYTES), set()).add(kind.total_bits)
    return {chunk for chunk, bits in widths.items() if len(bits) > 1 or min(bits) < 16}


def _moves(function: Function, instruction: Instruction, mixed: set[tuple[str, int]]) -> Iterator[Instruction]:
    access = _access(instruction)
    assert access is not None
    is_store = instruction.opcode == "st"
    for offset, kind, item in _pieces(instruction, access[1], function.variables[access[0]].size_bytes):
        chunk, within = divmod(offset, _CHUNK_BYTES)
        bits = kind.total_bits
        if (access[0], chunk) not in mixed:
            register = Reg(f"{access[0]}+{offset}")
            function.registers.setdefault(register.name, kind)
            pair = (register, item) if is_store else (item, register)
            yield replace(instruction, opcode="mov", modifiers=(f"b{bits}",), operands=pair)
            continue
        register = Reg(f"{access[0]}+{chunk * _CHUNK_BYTES}.mixed")
        function.registers.setdefault(register.name, TYPES["b64"])
        field = (Imm(8 * within), Imm(bits))
        if is_store:
            yield replace(instruction, opcode="bfi", modifiers=("b64",), operands=(register, item, register, *field))
        else:
            sign = "s64" if kind.kind == "s" else "u64"
            yield replace(instruction, opcode="bfe", modifiers=(sign,), operands=(item, register, *field))
