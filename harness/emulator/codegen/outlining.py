"""Emits kernels as calls of shared functions, which gives LLVM a tenth of the code and runs nearly as fast.

Kernels contain loops that compilers have unrolled: thousands of instructions, with about a hundred shapes. Two
instructions have the same shape if their code differs only in register locations and constants; these become arguments,
and the shape one function. A block is then a list of records (function and arguments) that a loop executes: threaded
code (Bell, 'Threaded Code', 1973), with functions compiled for this kernel.

Registers are in the warp's memory all the time. Those that no other block reads share locations, so that a block's
working set stays in the CPU's L1 cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from harness.emulator.abi import layout as at
from harness.emulator.codegen.storage import Registers, Storage
from harness.emulator.codegen.vector_ir_builder import BITS, INTEGER, vector
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.emulator.instruments import PLAIN, Instruments
from harness.ptx.blocks import Block, registers_of
from harness.ptx.instructions import Imm, Instruction, Not, Reg

_FAMILIES = frozenset({
    "abs", "add", "and", "cvt", "fma", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "selp", "setp", "shl",
    "shr", "sub", "xor",
})  # fmt: skip
"""The opcodes that loops mainly consist of. Their code depends only on form, operands and register types; that of
others may also depend on previously emitted code, or be referred to by number in the runtime."""


# Emitted code is reused for instructions that differ only in their registers. The code of arithmetic depends on its
# form and on the kinds of its operands. Two instructions share one function of `outlining` if they have the same form,
# their registers have the same types and coincide in the same positions, and their constants are equal; they pass the
# locations of their registers in the same order. A kernel of thousands of instructions has about a hundred distinct
# ones.
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


_WORD_BYTES = 8
_HEADER_WORDS = 2
_PARAMETERS = "i64 %ctx, i64 %warp, i32 %mask"
_RUN = f"""\
define internal i32 @run({_PARAMETERS}, ptr %first, ptr %end) {{
entry:
  br label %loop
loop:
  %record = phi ptr [ %first, %entry ], [ %next, %on ]
  %function.word = load i64, ptr %record
  %function = inttoptr i64 %function.word to ptr
  %size.place = getelementptr i64, ptr %record, i64 1
  %size = load i64, ptr %size.place
  %arguments = getelementptr i64, ptr %record, i64 {_HEADER_WORDS}
  %failed = call i32 %function(i64 %ctx, i64 %warp, i32 %mask, ptr %arguments)
  %next = getelementptr i8, ptr %record, i64 %size
  %fails = icmp ne i32 %failed, 0
  br i1 %fails, label %fault, label %on, !prof !0
on:
  %is.last = icmp eq ptr %next, %end
  br i1 %is.last, label %done, label %loop
done:
  ret i32 0
fault:
  ret i32 1
}}"""
"""Executes the records from `first` to `end`. Each consists of a function, the record's size in bytes, and the
arguments. A function returns whether the warp has faulted."""


class OutliningEmitter(WarpEmitter):
    """`WarpEmitter` whose `shared_function` emits the enclosed code as a function, and a record that calls it."""

    def __init__(
        self,
        registers: Registers,
        storage: Storage,
        instruments: Instruments = PLAIN,
        knows_clusters: bool = False,
    ) -> None:
        """Parameters are those of `WarpEmitter`."""
        super().__init__(registers, storage, instruments, knows_clusters)
        self._functions: dict[str, str] = {}
        """Function name by body."""
        self._pending: list[tuple[str, list[str]]] = []
        """Functions that the next call of `run` executes, with their arguments."""
        self._records: list[str] = []
        """The words of all records."""
        self._is_inside = False
        self._arguments: list[tuple[str, str]] = []
        """Type and value of each argument of the current function."""
        self._places: dict[int, str] = {}
        """Pointers to registers in the current function, by offset."""
        self._free: dict[int, list[int]] = {}
        """Unused register locations, by size in bytes."""
        self._endings: Iterator[list[str]] = iter(())
        """For each instruction of the coming block, the registers that are not read after it."""
        self._guard_bits = ""
        self._likeness = Likeness(registers)
        self._recipes: dict[Hashable, Recipe] = {}
        """Recipes by the common properties of their instructions."""
        self._to_keep: tuple[Hashable, tuple[str, ...]] | None = None
        """For the next `shared_function`: the key for its recipe, and the registers of its instruction."""
        self._touched: dict[str, None] = {}
        """Registers whose locations the current function uses."""
        self._place_arguments: list[int] = []
        """Indices of its arguments that are register locations."""

    # Functions and records ------------------------------------------------------------------------------------------

    @contextmanager
    def shared_function(self) -> Iterator[None]:
        """A context manager that emits a function and its call.

        `faulted` is the only outer label that it may jump to.
        """
        outside = self.lines, self._count, self.pointers, self.mask, self._mask_lanes
        self.lines, self._count, self.pointers, self.mask, self._mask_lanes = [], 0, {}, "%mask", "%mask.lanes"
        self._arguments, self._places, self._guard, self._guard_bits, self._is_inside = [], {}, None, "", True
        self._touched, self._place_arguments = {}, []
        self._forget_values()
        try:
            yield
            if self.lines:
                name = self._functions.setdefault(self._body(), f"@shape{len(self._functions)}")
                self._pending.append((name, [value for _, value in self._arguments]))
            if self._to_keep is not None:
                self._keep(*self._to_keep, name if self.lines else None)
        finally:
            self._to_keep = None
            self.lines, self._count, self.pointers, self.mask, self._mask_lanes = outside
            self._guard, self._guard_bits, self._is_inside = None, "", False
            self._forget_values()

    def repeat(self, instruction: Instruction) -> bool:
        """Emit a call of the function of an earlier instruction that differs only in registers.

        False if there is none.
        """
        likeness = self._likeness.of(instruction)
        if likeness is None:
            return False
        kind, registers = likeness
        recipe = self._recipes.get(kind)
        if recipe is None:
            self._to_keep = likeness
            return False
        self.instruction = instruction
        self.instructions_left -= 1
        for number in recipe.touched:
            self._offset(registers[number])
        if recipe.function is not None:
            words = [a if isinstance(a, str) else str(self._offsets[registers[a]]) for a in recipe.arguments]
            self._pending.append((recipe.function, words))
        return True

    def _keep(self, kind: Hashable, registers: tuple[str, ...], function: str | None) -> None:
        """Store the recipe of the instruction just emitted, unless it uses registers other than its own."""
        numbers = {name: number for number, name in enumerate(registers)}
        if any(name not in numbers for name in self._touched):
            return
        places = {str(self._offsets[name]): numbers[name] for name in self._touched}
        is_place = set(self._place_arguments)
        arguments = tuple(
            places[value] if number in is_place else value for number, (_, value) in enumerate(self._arguments)
        )
        self._recipes[kind] = Recipe(function, arguments, tuple(numbers[name] for name in self._touched))

    def _forget_values(self) -> None:
        self._values.clear()
        self._flushed.clear()

    def _body(self) -> str:
        """The function's body in a normalized form that does not depend on its arguments."""
        lines = "\n".join(self.lines)
        head = []
        for number, (kind, _) in enumerate(self._arguments):
            head.append(f"  %k{number}.place = getelementptr i64, ptr %arguments, i64 {number}")
            head.append(f"  %k{number} = load {kind}, ptr %k{number}.place")
        if any("%ctx.p" in expression for expression in self.pointers.values()):
            head.append("  %ctx.p = inttoptr i64 %ctx to ptr")
        if any("%warp.p" in expression for expression in self.pointers.values()):
            head.append("  %warp.p = inttoptr i64 %warp to ptr")
        head += (f"  {name} = {expression}" for name, expression in self.pointers.items())
        if "%mask.lanes" in lines:
            head.append("  %mask.lanes = bitcast i32 %mask to <32 x i1>")
        end = ["faulted:", "  ret i32 1"] if "label %faulted" in lines else []
        return "\n".join(["entry:", *head, lines, "  ret i32 0", *end])

    def _run_pending(self) -> None:
        first = len(self._records)
        for name, arguments in self._pending:
            size_bytes = _WORD_BYTES * (_HEADER_WORDS + len(arguments))
            self._records += (f"ptrtoint (ptr {name} to i64)", str(size_bytes), *arguments)
        self._pending = []
        ends = (f"ptr getelementptr (i64, ptr @records, i64 {place})" for place in (first, len(self._records)))
        failed = self.op(f"call i32 @run(i64 %ctx, i64 %warp, i32 {self.mask}, {', '.join(ends)})")
        self.stop_if(self.op(f"icmp ne i32 {failed}, 0"))

    def op(self, expression: str) -> str:
        """Emit `%x = expression` after any pending calls; returns the result's name."""
        if self._pending and not self._is_inside:
            self._run_pending()
        return super().op(expression)

    def do(self, statement: str) -> None:
        """Emit a statement after any pending calls."""
        if self._pending and not self._is_inside:
            self._run_pending()
        super().do(statement)

    def definitions(self) -> list[str]:
        """The functions, and the records of their calls."""
        words = ", ".join(f"i64 {word}" for word in self._records)
        found = [f"@records = internal constant [{len(self._records)} x i64] [{words}]", _RUN]
        for body, name in self._functions.items():
            found.append(f"define internal i32 {name}({_PARAMETERS}, ptr %arguments) {{\n{body}\n}}")
        return found

    # Arguments ------------------------------------------------------------------------------------------------------

    def scalar_of(self, value: str) -> str | None:
        """None: scalars would take LLVM time, and only its optimizer removes the unused vectors."""
        return None

    def argument(self, kind: str, constant: str) -> str:
        """A constant: within a function, one of its arguments."""
        if not self._is_inside:
            return super().argument(kind, constant)
        self._arguments.append((kind, constant))
        return f"%k{len(self._arguments) - 1}"

    def integer(self, value: int, element: str) -> str:
        """An integer constant in all lanes: within a function, one of its arguments."""
        if element == "i1" or not self._is_inside:
            return super().integer(value, element)
        return self.spread(element, self.number(value & ((1 << BITS[element]) - 1), element))

    def _float_from_bits(self, bits: int, element: str) -> str:
        integer = INTEGER[BITS[element]]
        return self.cast("bitcast", integer, self.integer(bits, integer), element)

    def warp_pointer(self, offset: int) -> str:
        """Pointer into the warp's state. A register's location is an argument of the function."""
        if not self._is_inside or offset < at.REGISTERS:
            return super().warp_pointer(offset)
        if offset not in self._places:
            pointer = f"%place{len(self._places)}"
            self._place_arguments.append(len(self._arguments))
            self.pointers[pointer] = f"getelementptr i8, ptr %warp.p, i64 {self.number(offset)}"
            self._places[offset] = pointer
        return self._places[offset]

    # Registers ------------------------------------------------------------------------------------------------------

    def begin_block(self, mask: str, block: Block) -> None:
        """Begin a block, and find the last use of each register in it."""
        super().begin_block(mask, block)
        self.lines.pop()  # the lanes of the mask, which each function computes as needed
        last_uses: dict[str, int] = {}
        instructions = [*block.body, *([block.branch] if block.branch else ())]
        for number, instruction in enumerate(instructions):
            for names in registers_of(instruction):
                last_uses.update(dict.fromkeys(names - self._registers.lasting, number))
        endings: list[list[str]] = [[] for _ in instructions]
        for name, number in last_uses.items():
            endings[number].append(name)
        self._endings = iter(endings)

    def end_instruction(self) -> None:
        """Release the locations of registers that are not read any more."""
        for name in next(self._endings):
            if name in self._offsets:
                self._free.setdefault(self._size_bytes(name), []).append(self._offsets.pop(name))

    def place(self, name: str) -> int:
        """Offset in the warp's memory of a lasting register."""
        assert name in self._registers.lasting, name
        return super().place(name)

    def _offset(self, name: str) -> int:
        self._touched[name] = None
        if name not in self._offsets and name not in self._registers.lasting:
            free = self._free.get(self._size_bytes(name))
            if free:
                self._offsets[name] = free.pop()
        return super()._offset(name)

    def _changed(self, name: str, own: str) -> None:
        """Store all lanes, or only the active ones of a lasting register, whose other lanes may still be needed."""
        value, offset = self._values[name, own], self._offset(name)
        if own == "i1":
            bits = self.bits_of(value)
            if name in self._registers.lasting:
                old = self.warp_load("i32", offset, 4)
                kept = self.op(f"and i32 {old}, {self.op(f'xor i32 {self.mask}, -1')}")
                bits = self.op(f"or i32 {kept}, {self.op(f'and i32 {bits}, {self.mask}')}")
            self.warp_store("i32", bits, offset, 4)
            return
        if name in self._registers.lasting:
            value = self.select(own, self._mask_lanes, value, self.warp_load(vector(own), offset))
        self.warp_store(vector(own), value, offset)

    # Guards ---------------------------------------------------------------------------------------------------------

    def guard(self, instruction: Instruction) -> None:
        """Set the instruction's predicate. It is converted from 32 bits to lanes only in functions that need lanes."""
        self.instruction = instruction
        self.instructions_left -= 1
        self._guard, self._guard_bits = None, ""
        if instruction.predicate is None:
            return
        bits = self.warp_load("i32", self._offset(instruction.predicate.name), 4)
        if instruction.negated:
            bits = self.op(f"xor i32 {bits}, -1")
        self._guard_bits = self.op(f"and i32 {bits}, {self.mask}")
        if self._is_inside:
            self._guard = self.lanes_of(self._guard_bits)

    def active(self) -> str:
        """Lanes on which the current instruction runs, as predicates."""
        return self._mask_lanes if self._guard is None else self._guard

    def active_bits(self) -> str:
        """Lanes on which the current instruction runs, as an i32 mask."""
        return self._guard_bits or self.mask
