"""Emits the sanitizer's checks on undefined registers: whether their bits reach memory or a branch.

A register that some path reads before it writes it has a mask of the lanes in which it is undefined, and so has each
register that may be computed from one. Compilers generate undefined values that nothing depends on: the other side of a
select, the first iteration of a loop, the bits that a mask drops. So a read alone is not a finding. These are:

- an undefined address, value that is stored outside of local memory, or operand of an atomic,
- an undefined predicate of a branch, or of an instruction that accesses memory.

A load of a `.param` variable to which the kernel never stores is a finding: no compiler generates that.

Stores of vectors are not checked, nor the results of logic, byte permutations and bit fields, which may drop undefined
bits.
"""

from __future__ import annotations

from harness.emulator.abi import sanitizer_layout as sanitizer
from harness.emulator.codegen.warp_emitter import WarpEmitter
from harness.ptx.blocks import Graph, registers_of
from harness.ptx.call_parameters import holds_parameter
from harness.ptx.instructions import Address, Instruction, Not, Reg, Vector
from harness.ptx.opcodes import ATOMIC, STORE

_STRICT_OPCODES = (
    "mov cvt cvta add sub mul mad fma addc subc madc mul24 mad24 sad div rem abs neg min max not cnot popc clz brev "
    "bfind shl shr xor setp set ex2 lg2 rcp sqrt rsqrt sin cos tanh selp"
)
"""Opcodes whose result is undefined if an operand is; for selp, the selected operand."""
_STRICT = frozenset(_STRICT_OPCODES.split())


class UndefinedRegisters:
    """The watched registers of one function; none without the sanitizer, or if all are written before use."""

    def __init__(self, lanes: WarpEmitter, graph: Graph, read_first: set[str]) -> None:
        """`read_first`: registers that some path reads before it writes them.

        No register of `lanes` may be placed before.
        """
        self._lanes = lanes
        tracked = _reached(graph, read_first) if lanes.instruments.sanitizer and read_first else set[str]()
        self._numbers = {name: number for number, name in enumerate(sorted(tracked))}
        written = {name for block in graph.blocks for i in block.body for name in registers_of(i)[1]}
        self._never_passed = {name for name in tracked - written if holds_parameter(name)}
        self._masks = lanes.reserve(4 * len(tracked)) if tracked else 0

    @property
    def watches(self) -> bool:
        """Whether there are registers to watch."""
        return bool(self._numbers)

    def watch(self, instruction: Instruction) -> None:
        """Called before the instruction, after its guard is set."""
        if not self._numbers:
            return
        if instruction.facts.memory is not None:
            self._check_access(instruction)
        reads, writes = registers_of(instruction)
        for name in sorted(reads & self._never_passed):
            self._check(instruction, sanitizer.ROLE_PARAMETER, Reg(name), self._lanes.active_bits())
        changed = sorted(writes & self._numbers.keys())
        if not changed:
            return
        lanes = self._lanes
        active = lanes.active_bits()
        fresh = self._and(self._of_result(instruction), active)
        inactive = lanes.op(f"xor i32 {active}, -1")
        guard = self._and(self._of(instruction.predicate), lanes.mask)
        for name in changed:
            value = self._or(self._and(self._load(name), inactive), fresh)
            lanes.warp_store("i32", self._or(value, guard), self._place(name), 4)

    def watch_branch(self, branch: Instruction) -> None:
        """Called before a branch on a predicate or an index."""
        deciding = branch.predicate or (branch.operands[0] if branch.opcode == "brx" else None)
        self._check(branch, sanitizer.ROLE_PREDICATE, deciding, self._lanes.mask)

    def _check_access(self, instruction: Instruction) -> None:
        active = self._lanes.active_bits()
        self._check(instruction, sanitizer.ROLE_PREDICATE, instruction.predicate, self._lanes.mask)
        for operand in instruction.operands:
            if isinstance(operand, Address):
                self._check(instruction, sanitizer.ROLE_ADDRESS, operand.base, active)
        if instruction.facts.memory not in (STORE, ATOMIC) or {"local", "param"} & set(instruction.modifiers):
            return
        for operand in instruction.operands[instruction.facts.writes :]:
            self._check(instruction, sanitizer.ROLE_VALUE, operand, active)

    def _check(self, instruction: Instruction, role: int, operand: object, lanes_that_use_it: str) -> None:
        name = operand.name if isinstance(operand, Reg) else ""
        if name in self._numbers:
            lanes = self._lanes
            wrong = self._and(self._load(name), lanes_that_use_it)
            site = lanes.number(lanes.site(instruction))
            lanes.runtime("watch_undefined", "%ctx", site, str(role), lanes.widen(wrong))

    # Masks ----------------------------------------------------------------------------------------------------------

    def _of_result(self, instruction: Instruction) -> str:
        """Mask, i32, of the lanes whose result is undefined."""
        operands = instruction.operands
        if not _is_strict(instruction):
            return "0"
        if instruction.opcode == "selp" and len(operands) == 4:
            chosen = self._lanes.bits_of(self._lanes.use(operands[3], "i1"))
            others = self._lanes.op(f"xor i32 {chosen}, -1")
            sides = self._or(self._and(self._of(operands[1]), chosen), self._and(self._of(operands[2]), others))
            return self._or(sides, self._of(operands[3]))
        reads, _ = registers_of(instruction)
        found = "0"
        guards = {instruction.predicate.name} if instruction.predicate else set[str]()
        for name in sorted((reads - guards) & self._numbers.keys()):
            found = self._or(found, self._load(name))
        return found

    def _of(self, operand: object) -> str:
        register = operand.reg if isinstance(operand, Not) else operand
        is_tracked = isinstance(register, Reg) and register.name in self._numbers
        return self._load(register.name) if is_tracked and isinstance(register, Reg) else "0"

    def _place(self, name: str) -> int:
        return self._masks + 4 * self._numbers[name]

    def _load(self, name: str) -> str:
        return self._lanes.warp_load("i32", self._place(name), 4)

    def _and(self, a: str, b: str) -> str:
        return "0" if "0" in (a, b) else self._lanes.op(f"and i32 {a}, {b}")

    def _or(self, a: str, b: str) -> str:
        if "0" in (a, b):
            return b if a == "0" else a
        return self._lanes.op(f"or i32 {a}, {b}")


def _is_strict(instruction: Instruction) -> bool:
    """Whether undefined operands make the result undefined: not for parts of vectors, nor for x - x and x ^ x."""
    if instruction.opcode not in _STRICT or any(isinstance(o, Vector) for o in instruction.operands):
        return False
    sources = instruction.operands[1:]
    return not (instruction.opcode in ("sub", "xor") and len(sources) == 2 and sources[0] == sources[1])


def _reached(graph: Graph, read_first: set[str]) -> set[str]:
    """These registers, and those that may hold values computed from them."""
    instructions = [i for block in graph.blocks for i in block.body]
    found, before = set(read_first), -1
    while len(found) != before:
        before = len(found)
        for instruction in instructions:
            reads, writes = registers_of(instruction)
            if reads & found and (
                _is_strict(instruction) or (instruction.predicate and instruction.predicate.name in found)
            ):
                found |= writes
    return found
