"""The intermediate representation: instructions, operands, functions and variables of one PTX module."""

from __future__ import annotations

from collections.abc import Iterator
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
    """A literal. Floats are kept as their bits with the width that the literal had."""

    value: int
    float_bits: int = 0
    """32 for 0f..., 64 for 0d..., 0 for an integer."""


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
    """`a|b`: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Not:
    """`!p`: a negated predicate source."""

    reg: Reg


@dataclass(frozen=True)
class Part:
    """`r.b0`, `r.h10`: bytes or halfwords of a register, in the video instructions."""

    reg: Reg
    selector: str
    """Without its dot."""


@dataclass(frozen=True)
class Negative:
    """`-r`: a source of `vmad` with its sign changed."""

    operand: Reg | Part


@dataclass(frozen=True)
class Arguments:
    """`(a, b, ...)` of a call."""

    items: tuple[Operand, ...]


Operand = Reg | Imm | Symbol | Address | Vector | Pair | Not | Part | Negative | Arguments

CARRY = "%carry"
"""The condition-code register: `.cc` writes it, addc, subc and madc read it."""

SINK = Reg("_")
"""The destination that throws its value away."""


@dataclass(frozen=True)
class SourceLine:
    """A place in the user's source."""

    file: str
    line: int


@dataclass(frozen=True)
class Instruction:
    """One instruction of PTX."""

    opcode: str
    """The first word, such as `ld`."""
    modifiers: tuple[str, ...]
    """The words after it, without their dots."""
    operands: tuple[Operand, ...]
    predicate: Reg | None
    negated: bool
    """Whether it runs where the predicate is false."""
    ptx_line: int
    source: SourceLine | None

    @property
    def form(self) -> str:
        """Opcode and modifiers as PTX writes them."""
        return ".".join((self.opcode, *self.modifiers))

    @cached_property
    def row_name(self) -> str:
        """Its row in `ptx.opcodes.OPCODES`."""
        return row_name(self.opcode, self.modifiers)

    @cached_property
    def facts(self) -> Opcode:
        """What is known of its opcode; `UNKNOWN` of one that is not in the table."""
        return facts_of(self.opcode, self.modifiers)

    def where(self) -> str:
        """For messages: the PTX line and, if known, the source line."""
        at = f"PTX line {self.ptx_line}"
        return f"{self.source.file}:{self.source.line} ({at})" if self.source else at

    def unsupported(self, why: str = "") -> UnsupportedInstruction:
        """The error that names this form and its line."""
        reason = f": {why}" if why else ""
        return UnsupportedInstruction(f"the emulator does not support '{self.form}' at {self.where()}{reason}")


@dataclass(frozen=True)
class Label:
    """A place to branch to."""

    name: str


Statement = Instruction | Label


@dataclass(frozen=True)
class Link:
    """A place in a variable's initial value that holds an address: `name`, `generic(name) + 4`, `0xFF00(name)`."""

    offset: int
    """In bytes, from the variable's beginning."""
    size_bytes: int
    target: str
    """A variable or a function."""
    addend: int
    mask: int | None
    """Which bits of the address belong here, moved down to bit 0; None: all of them."""

    def bits(self, address: int) -> int:
        """What to store where the target has this address."""
        value = address + self.addend
        if self.mask:
            value = (value & self.mask) >> ((self.mask & -self.mask).bit_length() - 1)
        return value & ((1 << 8 * self.size_bytes) - 1)


@dataclass(frozen=True)
class Variable:
    """A variable in memory: module or function scope."""

    name: str
    space: str
    """`global`, `const`, `shared`, `local` or `param`; `reg` of a parameter of a function that is a register."""
    align_bytes: int
    size_bytes: int
    """0 for `extern .shared x[]`: whatever the launch gives."""
    initial: bytes | None = None
    """Initial bytes, up to the last value that is given; the rest is zero."""
    extern: bool = False
    element: PtxType | None = None
    links: tuple[Link, ...] = ()
    """What has to be added to `initial` once it is known where everything lies."""


@dataclass
class Function:
    """An `.entry` or a `.func`."""

    name: str
    is_entry: bool
    returns: list[Variable] = field(default_factory=list)
    params: list[Variable] = field(default_factory=list)
    body: list[Statement] | None = None
    """None for a declaration."""
    registers: dict[str, PtxType] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """`.branchtargets` lists for `brx.idx`."""
    cluster: tuple[int, int, int] | None = None
    """`.reqnctapercluster`."""
    most_cluster_blocks: int | None = None
    """`.maxclusterrank`."""
    explicit_cluster: bool = False
    """`.explicitcluster`."""

    def instructions(self) -> Iterator[Instruction]:
        """The body without labels."""
        return (s for s in self.body or () if isinstance(s, Instruction))


@dataclass
class Module:
    """One PTX file."""

    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    target: str = ""


def names_in(instruction: Instruction) -> list[Reg | Symbol]:
    """The registers and symbols in its operands."""
    found: list[Reg | Symbol] = []
    stack: list[Operand] = list(instruction.operands)
    while stack:
        match stack.pop():
            case Reg() | Symbol() as operand:
                found.append(operand)
            case Vector(items) | Arguments(items):
                stack += items
            case Address(base):
                stack.append(base)
            case Pair(first, second):
                stack += (first, second)
            case Not(reg) | Part(reg) | Negative(reg):
                stack.append(reg)
    return found


def rename(operand: Operand, names: dict[str, str]) -> Operand:
    """The operand with registers and symbols renamed; names that are not in `names` stay."""
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
    """The instruction with all its operands and its predicate renamed."""
    predicate = instruction.predicate
    return replace(
        instruction,
        operands=tuple(rename(o, names) for o in instruction.operands),
        predicate=None if predicate is None else Reg(names.get(predicate.name, predicate.name)),
    )
