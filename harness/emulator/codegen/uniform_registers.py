"""Finds registers in which all running lanes have the same value, so that one scalar instruction computes it for all.

Loop counters and strides are like this. A register is uniform if everything that the function writes to it is computed
from parameters, literals, the block's coordinates and other uniform registers, lane by lane, and if lanes that run
together have come to its value on one path: lanes part at a branch whose predicate is not uniform, and

- what is written on one side of it, and read where both sides lead, may differ, and
- lanes that part within a loop may be in different iterations, so nothing that the loop writes is uniform.

No memory is read, so it does not matter when lanes compute a value. That lanes of one iteration stay together follows
from the order of blocks (`ptx/blocks.py`).
"""

from __future__ import annotations

from harness.ptx.blocks import EXIT, Graph, Liveness, registers_of
from harness.ptx.instructions import CARRY, Address, Function, Instruction, Symbol

_LANEWISE = frozenset({
    "abs", "add", "and", "bfe", "bfi", "brev", "bfind", "clz", "cnot", "copysign", "cvt", "cvta", "div", "fma", "lop3",
    "mad", "mad24", "max", "min", "mov", "mul", "mul24", "neg", "not", "or", "popc", "prmt", "rem", "sad", "selp",
    "set", "setp", "shf", "shl", "shr", "slct", "sub", "szext", "testp", "xor",
})  # fmt: skip
"""Opcodes whose result in a lane depends on nothing but the operands in that lane."""
_OF_THE_BLOCK = frozenset(f"%{name}.{axis}" for name in ("ctaid", "nctaid", "ntid") for axis in "xyz")


def uniform_registers(function: Function, graph: Graph, live: Liveness) -> frozenset[str]:
    """Names of the uniform registers: the greatest fixed point, so that values carried around loops qualify."""
    reached = _reachable(graph)
    varying = live.before[0] & function.registers.keys()
    parted: set[int] = set()
    changed = True
    while changed:
        changed = False
        for block in graph.blocks:
            for instruction in block.body:
                writes = registers_of(instruction)[1]
                if not writes <= varying and not _is_uniform(instruction, function, varying):
                    varying |= writes
                    changed = True
        for number, block in enumerate(graph.blocks):
            branch = block.branch
            if number in parted or branch is None or not _varies(registers_of(branch)[0], function, varying):
                continue
            parted.add(number)
            varying |= _written_apart(graph, live, reached, number)
            changed = True
    return frozenset(function.registers.keys() - varying)


def _is_uniform(instruction: Instruction, function: Function, varying: set[str]) -> bool:
    reads, writes = registers_of(instruction)
    if CARRY in reads or CARRY in writes or _varies(reads, function, varying):
        return False
    if instruction.opcode == "ld":
        address = instruction.operands[1]
        return "param" in instruction.modifiers and isinstance(address, Address) and isinstance(address.base, Symbol)
    return instruction.opcode in _LANEWISE


def _varies(reads: frozenset[str], function: Function, varying: set[str]) -> bool:
    return any(name in varying or (name not in function.registers and name not in _OF_THE_BLOCK) for name in reads)


def _written_apart(graph: Graph, live: Liveness, reached: list[frozenset[int]], number: int) -> set[str]:
    """Registers that may differ among lanes behind the branch that ends a block, on which they disagree."""
    if number in reached[number]:
        loop = [other for other in reached[number] if number in reached[other]]
        return set().union(*(_writes(graph, other) for other in loop))
    sides = [reached[target] | {target} for target in set(graph.blocks[number].targets) if target != EXIT]
    both = {block for side in sides for block in side if sum(block in other for other in sides) > 1}
    differing: set[str] = set()
    for block in set().union(*sides) - both:
        differing |= _writes(graph, block)
    needed: set[str] = set()
    for block in both:
        needed |= live.before[block]
    return differing & needed


def _writes(graph: Graph, number: int) -> set[str]:
    return set().union(*(registers_of(instruction)[1] for instruction in graph.blocks[number].body))


def _reachable(graph: Graph) -> list[frozenset[int]]:
    """For each block, those that can run after it."""
    after: list[set[int]] = [{t for t in block.targets if t != EXIT} for block in graph.blocks]
    changed = True
    while changed:
        changed = False
        for number in range(len(after) - 1, -1, -1):
            more = set().union(after[number], *(after[target] for target in after[number]))
            if len(more) > len(after[number]):
                after[number] = more
                changed = True
    return [frozenset(blocks) for blocks in after]
