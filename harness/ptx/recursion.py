"""Calls of functions that are running already, for `inline`: a stack in local memory keeps what such a call overwrites.

A recursive function is inlined like others, but with its own copies of its parameters. A call of it from within itself
pushes the registers and parameters of all functions from it to the caller, sets the parameters, and branches to its
beginning. Its end pops the frame on top, and goes on behind that frame's call, or behind the first if there is none.
Its variables in local memory are on the stack, too, so that each call has its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from harness.ptx import instructions as ir
from harness.ptx.types import TYPES, PtxType

STACK_BYTES = 32 << 10
"""Size of each thread's stack. More is a fault."""
OVERFLOW = "overflow"
"""`call.overflow`: the stack is full."""
_STACK, _POINTER = "recursion@stack", ir.Reg("recursion@pointer")
_FULL = ir.Reg("recursion@full")
_SITE_BYTES = 8
"""Bytes on top of a frame, with the number of its call."""
_ALIGNMENT = 16
"""Of frames, and the largest of variables."""


def recursive_functions(module: ir.Module) -> frozenset[str]:
    """Names of the functions that call themselves, directly or through others."""
    called = {
        name: {
            operand.name
            for instruction in function.instructions()
            if instruction.opcode == "call"
            for operand in instruction.operands
            if isinstance(operand, ir.Symbol)
        }
        for name, function in module.functions.items()
    }

    def reaches(start: str) -> bool:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in called.get(waiting.pop(), ()):
                if name == start:
                    return True
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return False

    return frozenset(name for name in called if reaches(name))


@dataclass
class Activation:
    """A function that is being inlined."""

    name: str
    prefix: str
    registers: dict[str, PtxType]
    """Its registers by their names in the flat function."""
    variables: dict[str, int] = field(default_factory=dict)
    """Of a recursive function: the offsets of its variables in local memory from `frame`, by their own names."""
    variable_bytes: int = 0
    parameters: list[ir.Variable] = field(default_factory=list)
    """Of a recursive function: its own copies of its parameters, and of its results behind them."""
    results: list[ir.Variable] = field(default_factory=list)
    calls: int = 0
    """Number of calls from within itself."""

    @property
    def base(self) -> ir.Reg:
        """Register with the top of the stack at the first call."""
        return ir.Reg(f"{self.prefix}base")

    @property
    def frame(self) -> ir.Reg:
        """Register with the address of the variables of the call that is running."""
        return ir.Reg(f"{self.prefix}frame")

    def place_variables(self, variables: Iterable[ir.Variable]) -> None:
        """Give the function's variables in local memory their places."""
        for variable in variables:
            alignment = max(1, variable.align_bytes)
            self.variables[variable.name] = -(-self.variable_bytes // alignment) * alignment
            self.variable_bytes = self.variables[variable.name] + variable.size_bytes
        self.variable_bytes = -(-self.variable_bytes // _ALIGNMENT) * _ALIGNMENT

    @property
    def beginning(self) -> str:
        """Label of its first instruction."""
        return f"{self.prefix}beginning"

    def after(self, number: int) -> str:
        """Label behind a call from within itself."""
        return f"{self.prefix}after{number}"


def _pieces(size_bytes: int) -> Iterator[tuple[int, str]]:
    """Offset and type of the pieces in which a parameter is copied."""
    offset = 0
    while offset < size_bytes:
        width = next(each for each in (8, 4, 2, 1) if offset % each == 0 and offset + each <= size_bytes)
        yield offset, f"b{8 * width}"
        offset += width


class Recursion:
    """Emits the code of recursive calls of one flat function. `at` is the call whose location instructions get."""

    def __init__(self, flat: ir.Function) -> None:
        self._flat = flat
        self._temporaries = 0
        self.is_used = False

    def begin(self, first: ir.Instruction) -> list[ir.Instruction]:
        """Instructions for the beginning of the flat function."""
        self._flat.variables[_STACK] = ir.Variable(_STACK, "local", _ALIGNMENT, STACK_BYTES)
        return [
            replace(first, opcode="mov", modifiers=("u64",), operands=(_POINTER, ir.Symbol(_STACK)), predicate=None)
        ]

    def _new(self, kind: str) -> ir.Reg:
        self._temporaries += 1
        register = ir.Reg(f"recursion@{self._temporaries}")
        self._flat.registers[register.name] = TYPES[kind]
        return register

    def copy(self, at: ir.Instruction, source: str, target: str, size_bytes: int) -> Iterator[ir.Instruction]:
        """Copy a parameter to another."""
        for offset, kind in _pieces(size_bytes):
            register = self._new(kind)
            source_place, target_place = (ir.Address(ir.Symbol(name), offset) for name in (source, target))
            yield replace(at, opcode="ld", modifiers=("param", kind), operands=(register, source_place))
            yield replace(at, opcode="st", modifiers=("param", kind), operands=(target_place, register))

    def enter(self, at: ir.Instruction, activation: Activation) -> Iterator[ir.Statement]:
        """Before the body of a recursive function: its beginning, and memory for its variables."""
        self.is_used = True
        registers = {each.name: TYPES["b64"] for each in (_POINTER, activation.base, activation.frame)}
        self._flat.registers |= {**registers, _FULL.name: TYPES["pred"]}
        activation.registers |= {each.name: TYPES["b64"] for each in (activation.base, activation.frame)}
        yield replace(at, opcode="mov", modifiers=("b64",), operands=(activation.base, _POINTER))
        yield ir.Label(activation.beginning)
        yield replace(at, opcode="mov", modifiers=("b64",), operands=(activation.frame, _POINTER))
        yield from self._require(at, activation.variable_bytes)
        yield self._move_pointer(at, "add", activation.variable_bytes)

    def _require(self, at: ir.Instruction, size_bytes: int) -> Iterator[ir.Instruction]:
        """Fault if the stack has no room for so many bytes."""
        limit = self._new("b64")
        end = ir.Symbol(_STACK, max(0, STACK_BYTES - size_bytes))
        yield replace(at, opcode="mov", modifiers=("u64",), operands=(limit, end))
        yield replace(at, opcode="setp", modifiers=("gt", "u64"), operands=(_FULL, _POINTER, limit))
        yield replace(at, modifiers=(OVERFLOW,), operands=(), predicate=_FULL)

    def _move_pointer(self, at: ir.Instruction, operation: str, size_bytes: int) -> ir.Instruction:
        operands = (_POINTER, _POINTER, ir.Imm(size_bytes))
        return replace(at, opcode=operation, modifiers=("u64",), operands=operands)

    def in_frame(self, instruction: ir.Instruction, activation: Activation) -> Iterator[ir.Instruction]:
        """An instruction of a recursive function, whose variables are relative to its frame."""
        operands: list[ir.Operand] = []
        for operand in instruction.operands:
            base = operand.base if isinstance(operand, ir.Address) else operand
            if not isinstance(base, ir.Symbol) or base.name not in activation.variables:
                operands.append(operand)
                continue
            offset = activation.variables[base.name] + base.offset
            if isinstance(operand, ir.Address):
                operands.append(ir.Address(activation.frame, offset + operand.offset))
                continue
            register = self._new("b64")
            sum_operands = (register, activation.frame, ir.Imm(offset))
            plain = replace(instruction, predicate=None, negated=False)
            yield replace(plain, opcode="add", modifiers=("u64",), operands=sum_operands)
            operands.append(register)
        yield replace(instruction, operands=tuple(operands))

    def leave(self, at: ir.Instruction, activation: Activation, first_end: str) -> Iterator[ir.Instruction]:
        """After the body: back behind the call whose frame is on top, or to the end of the first call."""
        here, site = self._new("pred"), self._new("b64")
        yield replace(at, opcode="mov", modifiers=("b64",), operands=(_POINTER, activation.frame))
        yield replace(at, opcode="setp", modifiers=("eq", "u64"), operands=(here, _POINTER, activation.base))
        yield _branch(at, first_end, here)
        place = ir.Address(_POINTER, -_SITE_BYTES)
        yield replace(at, opcode="ld", modifiers=("local", "b64"), operands=(site, place))
        for number in range(activation.calls):
            yield replace(at, opcode="setp", modifiers=("eq", "u64"), operands=(here, site, ir.Imm(number)))
            yield _branch(at, activation.after(number), here)

    def call(
        self, at: ir.Instruction, chain: list[Activation], arguments: list[str], results: list[str]
    ) -> Iterator[ir.Statement]:
        """A call of the first function of the chain by the last. Arguments and results are parameters' names."""
        activation = chain[0]
        number = activation.calls
        activation.calls += 1
        saved = list(self._saved(chain))
        size = -(-(8 * len(saved) + _SITE_BYTES) // _ALIGNMENT) * _ALIGNMENT
        yield from self._require(at, size)
        for offset, kept in saved:
            yield from self._push(at, offset, kept)
        place = ir.Address(_POINTER, size - _SITE_BYTES)
        yield replace(at, opcode="st", modifiers=("local", "b64"), operands=(place, ir.Imm(number)))
        yield self._move_pointer(at, "add", size)
        for variable, argument in zip(activation.parameters, arguments):
            yield from self.copy(at, argument, variable.name, variable.size_bytes)
        yield _branch(at, activation.beginning)
        yield ir.Label(activation.after(number))
        yield self._move_pointer(at, "sub", size)
        for variable, result in zip(activation.results, results):
            yield from self.copy(at, variable.name, result, variable.size_bytes)
        for offset, kept in saved:
            yield from self._pop(at, offset, kept)

    def _saved(self, chain: list[Activation]) -> Iterator[tuple[int, tuple[ir.Reg, PtxType] | tuple[str, int, str]]]:
        """What a frame keeps, each in 8 bytes, by offset: registers, and pieces of parameters."""
        offset = 0
        for activation in chain:
            for name, kind in activation.registers.items():
                yield offset, (ir.Reg(name), kind)
                offset += 8
            for variable in activation.parameters:
                for within, piece in _pieces(variable.size_bytes):
                    yield offset, (variable.name, within, piece)
                    offset += 8

    def _push(
        self, at: ir.Instruction, offset: int, kept: tuple[ir.Reg, PtxType] | tuple[str, int, str]
    ) -> Iterator[ir.Instruction]:
        place = ir.Address(_POINTER, offset)
        if len(kept) == 3:
            name, within, piece = kept
            register = self._new(piece)
            source = ir.Address(ir.Symbol(name), within)
            yield replace(at, opcode="ld", modifiers=("param", piece), operands=(register, source))
        else:
            register, kind = kept
            piece = f"b{kind.total_bits}"
            if kind.kind == "pred":
                source_register, register, piece = register, self._new("b32"), "b32"
                operands = (register, ir.Imm(1), ir.Imm(0), source_register)
                yield replace(at, opcode="selp", modifiers=("b32",), operands=operands)
        yield replace(at, opcode="st", modifiers=("local", piece), operands=(place, register))

    def _pop(
        self, at: ir.Instruction, offset: int, kept: tuple[ir.Reg, PtxType] | tuple[str, int, str]
    ) -> Iterator[ir.Instruction]:
        place = ir.Address(_POINTER, offset)
        if len(kept) == 3:
            name, within, piece = kept
            register = self._new(piece)
            yield replace(at, opcode="ld", modifiers=("local", piece), operands=(register, place))
            target = ir.Address(ir.Symbol(name), within)
            yield replace(at, opcode="st", modifiers=("param", piece), operands=(target, register))
            return
        register, kind = kept
        if kind.kind == "pred":
            word = self._new("b32")
            yield replace(at, opcode="ld", modifiers=("local", "b32"), operands=(word, place))
            yield replace(at, opcode="setp", modifiers=("ne", "u32"), operands=(register, word, ir.Imm(0)))
        else:
            piece = f"b{kind.total_bits}"
            yield replace(at, opcode="ld", modifiers=("local", piece), operands=(register, place))


def _branch(at: ir.Instruction, label: str, predicate: ir.Reg | None = None) -> ir.Instruction:
    return replace(at, opcode="bra", modifiers=(), operands=(ir.Symbol(label),), predicate=predicate)
