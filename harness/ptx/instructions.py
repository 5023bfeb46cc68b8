"""Defines the intermediate representation: instructions, operands, functions and variables of a PTX module."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from harness.ptx.opcodes import Opcode, facts_of, row_name
from harness.ptx.types import PtxType
from harness.support.errors import UnsupportedInstruction


@dataclass(frozen=True)
class Reg:
    """A register, or a special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True)
class Imm:
    """A literal. Floats are stored as bits, with the width of the literal."""

    value: int
    float_bits: int = 0
    """Width of a float: 32 for 0f..., 64 for 0d...; 0 for an integer."""


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`."""

    base: Reg | Symbol | Imm
    offset: int = 0


@dataclass(frozen=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """Two destinations `a|b`."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Not:
    """The negated predicate source `!p`."""

    reg: Reg


@dataclass(frozen=True)
class Part:
    """Bytes or halfwords of a register in video instructions, such as `r.b0` or `r.h10`."""

    reg: Reg
    selector: str
    """The selector without its dot."""


@dataclass(frozen=True)
class Negative:
    """The negated source `-r` of `vmad`."""

    operand: Reg | Part


@dataclass(frozen=True)
class Arguments:
    """The arguments `(a, b, ...)` of a call."""

    items: tuple[Operand, ...]


Operand = Reg | Imm | Symbol | Address | Vector | Pair | Not | Part | Negative | Arguments

CARRY = "%carry"
"""The condition-code register, written by `.cc` and read by addc, subc and madc."""

SINK = Reg("_")
"""The destination that discards its value."""


@dataclass(frozen=True)
class SourceLine:
    """A line in the user's source."""

    file: str
    line: int


@dataclass(frozen=True)
class Instruction:
    """An instruction of PTX."""

    opcode: str
    """The first word, such as `ld`."""
    modifiers: tuple[str, ...]
    """The words after it, without their dots."""
    operands: tuple[Operand, ...]
    predicate: Reg | None
    negated: bool
    """Whether the instruction executes if the predicate is false."""
    ptx_line: int
    source: SourceLine | None

    @property
    def form(self) -> str:
        """Opcode and modifiers in PTX syntax."""
        return ".".join((self.opcode, *self.modifiers))

    @cached_property
    def row_name(self) -> str:
        """Name of its row in `ptx.opcodes.OPCODES`."""
        return row_name(self.opcode, self.modifiers)

    @cached_property
    def facts(self) -> Opcode:
        """Properties of its opcode; `UNKNOWN` for an opcode that is not in the table."""
        return facts_of(self.opcode, self.modifiers)

    def where(self) -> str:
        """Location for messages: the PTX line and, if known, the source line."""
        at = f"PTX line {self.ptx_line}"
        return f"{self.source.file}:{self.source.line} ({at})" if self.source else at

    def unsupported(self, why: str = "") -> UnsupportedInstruction:
        """Return the error that reports this form and its line as unsupported."""
        reason = f": {why}" if why else ""
        return UnsupportedInstruction(f"the emulator does not support '{self.form}' at {self.where()}{reason}")


@dataclass(frozen=True)
class Label:
    """A branch target."""

    name: str


Statement = Instruction | Label


@dataclass(frozen=True)
class Link:
    """An address in a variable's initial value: `name`, `generic(name) + 4`, `0xFF00(name)`."""

    offset: int
    """Position in bytes from the beginning of the variable."""
    size_bytes: int
    target: str
    """Name of a variable or a function."""
    addend: int
    mask: int | None
    """Bits of the address to store, shifted down to bit 0. None: all of them."""

    def bits(self, address: int) -> int:
        """Return the value to store if the target has this address."""
        value = address + self.addend
        if self.mask:
            value = (value & self.mask) >> ((self.mask & -self.mask).bit_length() - 1)
        return value & ((1 << 8 * self.size_bytes) - 1)


@dataclass(frozen=True)
class Variable:
    """A variable in memory, in module or function scope."""

    name: str
    space: str
    """`global`, `const`, `shared`, `local` or `param`; `reg` for a parameter in a register."""
    align_bytes: int
    size_bytes: int
    """Size in bytes; 0 for `extern .shared x[]`, whose size the launch determines."""
    initial: bytes | None = None
    """Initial bytes up to the last given value, followed by zeros. None without an initializer."""
    extern: bool = False
    element: PtxType | None = None
    links: tuple[Link, ...] = ()
    """Addresses to add to `initial` when the positions of all variables are known."""


@dataclass
class Function:
    """An `.entry` or a `.func`."""

    name: str
    is_entry: bool
    returns: list[Variable] = field(default_factory=list)
    params: list[Variable] = field(default_factory=list)
    body: list[Statement] | None = None
    """Statements of the body; None for a declaration."""
    registers: dict[str, PtxType] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Labels of each `.branchtargets` list, used by `brx.idx`, and functions of each `.calltargets` list."""
    most_threads: int | None = None
    """Threads of a block by `.maxntid` or `.reqntid`, or None."""
    least_blocks: int | None = None
    """Blocks per multiprocessor by `.minnctapersm`, or None."""
    most_registers: int | None = None
    """Registers per thread by `.maxnreg`, or None."""
    cluster: tuple[int, int, int] | None = None
    """Cluster size of `.reqnctapercluster`, or None."""
    most_cluster_blocks: int | None = None
    """Value of `.maxclusterrank`, or None."""
    explicit_cluster: bool = False
    """Whether `.explicitcluster` is present."""

    def instructions(self) -> Iterator[Instruction]:
        """Iterate over the body without labels."""
        return (s for s in self.body or () if isinstance(s, Instruction))


@dataclass
class Module:
    """The content of a PTX file."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    target: str = ""


def names_in(instruction: Instruction) -> tuple[Reg | Symbol, ...]:
    """Return the registers and symbols in the operands of an instruction."""
    # Cached in the instruction, since several passes need them.
    known: tuple[Reg | Symbol, ...] | None = vars(instruction).get("names")
    if known is None:
        known = vars(instruction)["names"] = tuple(_names(instruction.operands))
    return known


def _names(operands: Iterable[Operand]) -> Iterator[Reg | Symbol]:
    stack = list(operands)
    while stack:
        match stack.pop():
            case Reg() | Symbol() as operand:
                yield operand
            case Vector(items) | Arguments(items):
                stack += items
            case Address(base):
                stack.append(base)
            case Pair(first, second):
                stack += (first, second)
            case Not(reg) | Part(reg) | Negative(reg):
                stack.append(reg)


def rename(operand: Operand, names: dict[str, str]) -> Operand:
    """Rename registers and symbols in an operand. Names that are not in `names` do not change."""
    match operand:
        case Reg(name):
            return Reg(names.get(name, name))
        case Symbol(name, offset):
            return Symbol(names.get(name, name), offset)
        case Address(base, offset):
            renamed = rename(base, names)
            assert isinstance(renamed, (Reg, Symbol, Imm))
            return Address(renamed, offset)
        case Vector(items):
            return Vector(tuple(rename(i, names) for i in items))
        case Arguments(items):
            return Arguments(tuple(rename(i, names) for i in items))
        case Pair(first, second):
            return Pair(rename(first, names), rename(second, names))
        case Not(reg):
            return Not(Reg(names.get(reg.name, reg.name)))
        case Part(reg, selector):
            return Part(Reg(names.get(reg.name, reg.name)), selector)
        case Negative(inner):
            renamed = rename(inner, names)
            assert isinstance(renamed, (Reg, Part))
            return Negative(renamed)
        case _:
            return operand


def rename_instruction(instruction: Instruction, names: dict[str, str]) -> Instruction:
    """Rename all operands and the predicate of an instruction."""
    predicate = instruction.predicate
    return replace(
        instruction,
        operands=tuple(rename(o, names) for o in instruction.operands),
        predicate=None if predicate is None else Reg(names.get(predicate.name, predicate.name)),
    )


_LAST_PART = re.compile(r"E\d+([A-Za-z_]\w*?)(?:E|(?:_\$)?_\d+)?$")
"""Matches the last part of a mangled C++ name, with its length."""


def source_name(name: str) -> str:
    """Return the last part of a mangled C++ name, as written in the source: `_ZZ1kE5tiles` -> `tiles`.

    Other names are returned unchanged.
    """
    found = _LAST_PART.search(name)
    return found[1] if found else name
