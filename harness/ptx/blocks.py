"""Divides a flat function into basic blocks, numbered in the order in which a diverged warp visits them.

A warp always runs the lanes with the lowest block number first, so the numbering decides where lanes reconverge: blocks
are in topological order, the blocks of a loop are consecutive, and blocks after a loop have higher numbers than the
loop (Bourdoncle's weak topological order). Lanes that leave a loop early then wait after it, and both sides of a branch
meet at its immediate post-dominator. A loop with several back edges gets one latch, an empty block at its end, so that
a lane that executes `continue` waits there for the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from harness.ptx.instructions import CARRY, Function, Imm, Instruction, Label, Negative, Not, Part, Reg, Symbol
from harness.ptx.opcodes import BARRIER_RESULT, Flow
from harness.support.errors import CompileError

EXIT = -1
"""Target of lanes that return."""


@dataclass
class Block:
    """A sequence of instructions without branches, and the blocks that may follow it."""

    body: list[Instruction] = field(default_factory=list)
    """The instructions without the final branch. A barrier is the last instruction of its block."""
    branch: Instruction | None = None
    """The final branch, for its predicate, index and source line; None if the block falls through."""
    targets: list[int] = field(default_factory=list)
    """Numbers of the following blocks, or EXIT. One; or two, for a branch that is taken and not taken; or the table of
    a `brx.idx`."""
    source: Instruction | None = None
    """An instruction of the block, for messages."""


@dataclass
class Graph:
    """The blocks of a function. Block 0 is the entry."""

    blocks: list[Block]


def is_block_barrier(instruction: Instruction) -> bool:
    """Whether the warps of a block wait for each other at this instruction. `bar.warp.sync` is not such a barrier."""
    return instruction.facts.flow is Flow.BARRIER and "warp" not in instruction.modifiers


def yields(instruction: Instruction) -> bool:
    """Whether the warp returns to the scheduler after this instruction."""
    return is_block_barrier(instruction) or instruction.facts.flow in (Flow.YIELD, Flow.WARPGROUP, Flow.CLUSTER)


def build_graph(function: Function) -> Graph:
    """Divide a flat function into blocks and number them. Raises `CompileError` for a branch to an unknown label."""
    blocks = _cut(function)
    blocks = _only_reachable(blocks)
    order = _order(blocks)
    blocks = _renumber(blocks, order)
    return _with_single_latches(blocks)


def _cut(function: Function) -> list[Block]:
    blocks = [Block()]
    labels: dict[str, int] = {}
    pending: list[tuple[Block, Instruction, list[str]]] = []
    open_block = True

    def start() -> Block:
        nonlocal open_block
        if open_block and blocks[-1].body:
            blocks[-1].targets = [len(blocks)]
            blocks.append(Block())
        elif not open_block:
            blocks.append(Block())
        open_block = True
        return blocks[-1]

    for statement in function.body or ():
        if isinstance(statement, Label):
            start()
            labels[statement.name] = len(blocks) - 1
            continue
        block = blocks[-1] if open_block else start()
        flow = statement.facts.flow
        if flow in (Flow.BRANCH, Flow.LEAVE):
            block.branch = statement
            block.source = block.source or statement
            following = len(blocks)
            if flow is Flow.LEAVE:
                block.targets = [EXIT] if statement.predicate is None else [EXIT, following]
            else:
                pending.append((block, statement, _branch_labels(function, statement)))
                if statement.predicate is not None:
                    block.targets = [following]
            open_block = False
        else:
            block.body.append(statement)
            block.source = block.source or statement
            if yields(statement):
                block.targets = [len(blocks)]
                open_block = False
            if flow is Flow.BARRIER and "red" in statement.modifiers:
                start().body.append(replace(statement, opcode=BARRIER_RESULT, operands=statement.operands[:1]))
    last = blocks[-1]
    if open_block:
        last.targets = [EXIT]
    blocks.append(Block(targets=[EXIT]))
    for block, branch, names in pending:
        for name in names:
            if name not in labels:
                raise CompileError(f"PTX line {branch.ptx_line}: label '{name}' is not declared")
        block.targets = [labels[name] for name in names] + block.targets
    return blocks


def _branch_labels(function: Function, branch: Instruction) -> list[str]:
    if len(branch.operands) != (1 if branch.opcode == "bra" else 2):
        raise branch.unsupported(f"a form with {len(branch.operands)} operands")
    if branch.opcode == "bra":
        target = branch.operands[0]
        if not isinstance(target, Symbol):
            raise branch.unsupported("a branch to a register")
        return [target.name]
    if branch.predicate is not None:
        raise branch.unsupported("a predicated 'brx'")
    table = branch.operands[-1]
    if not isinstance(table, Symbol) or table.name not in function.branch_targets:
        raise branch.unsupported("a branch table that is not in the function")
    return list(function.branch_targets[table.name])


def _only_reachable(blocks: list[Block]) -> list[Block]:
    seen = {0}
    stack = [0]
    while stack:
        for target in blocks[stack.pop()].targets:
            if target != EXIT and target not in seen:
                seen.add(target)
                stack.append(target)
    return _renumber(blocks, sorted(seen))


def _renumber(blocks: list[Block], order: list[int]) -> list[Block]:
    number = {old: new for new, old in enumerate(order)}
    number[EXIT] = EXIT
    for old in order:
        blocks[old].targets = [number[t] for t in blocks[old].targets]
    return [blocks[old] for old in order]


def _order(blocks: list[Block]) -> list[int]:
    """Return the weak topological order of the blocks.

    Components are in topological order. Each loop's header comes first, and its blocks are consecutive.
    """
    order: list[int] = []
    work: list[tuple[int, frozenset[int]]] = [(0, frozenset(range(len(blocks))))]
    while work:
        entry, within = work.pop()
        components = _components(blocks, entry, within)
        if len(components) == 1 and components[0] == [entry]:
            order.append(entry)
            continue
        # Pushed in reverse, so that the first component in topological order is popped first.
        for component in reversed(components):
            header, members = component[0], frozenset(component)
            if len(component) == 1:
                work.append((header, members))
            else:
                inner = members - {header}
                for successor_component in reversed(_components_from_all(blocks, header, inner)):
                    work.append((successor_component[0], frozenset(successor_component)))
                work.append((header, frozenset((header,))))
    return order


def _components_from_all(blocks: list[Block], header: int, inner: frozenset[int]) -> list[list[int]]:
    return _tarjan(blocks, [t for t in blocks[header].targets if t in inner], inner)


def _components(blocks: list[Block], entry: int, within: frozenset[int]) -> list[list[int]]:
    return _tarjan(blocks, [entry], within)


def _tarjan(blocks: list[Block], roots: list[int], within: frozenset[int]) -> list[list[int]]:
    """Return the strongly connected components of the blocks in `within`, in topological order.

    Each component begins with the block at which it was entered first: a loop's header.
    """
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    found: list[list[int]] = []
    # The last root is explored first, so that the component of the first branch target comes first in the result.
    for root in reversed(roots):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        walk = [(root, _inside(blocks, root, within))]
        while walk:
            node, successors = walk[-1]
            if successors:
                target = successors.pop()
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    walk.append((target, _inside(blocks, target, within)))
                elif target in on_stack:
                    low[node] = min(low[node], index[target])
                continue
            walk.pop()
            if walk:
                low[walk[-1][0]] = min(low[walk[-1][0]], low[node])
            if low[node] == index[node]:
                cut = stack.index(node)
                found.append(stack[cut:])
                on_stack.difference_update(stack[cut:])
                del stack[cut:]
    return found[::-1]


def _inside(blocks: list[Block], node: int, within: frozenset[int]) -> list[int]:
    return [t for t in blocks[node].targets if t in within]


def _with_single_latches(blocks: list[Block]) -> Graph:
    """Give each loop with several back edges an empty last block, which all of them pass through."""
    sources: dict[int, list[int]] = {}
    for number, block in enumerate(blocks):
        for target in block.targets:
            if EXIT < target <= number:
                sources.setdefault(target, []).append(number)
    latches: dict[int, list[int]] = {}
    for header, tails in sources.items():
        if len(tails) > 1:
            latches.setdefault(max(tails), []).append(header)
    if not latches:
        return Graph(blocks)
    # Headers of inner loops have higher numbers, and their latches come first.
    order: list[tuple[str, int]] = []
    for number in range(len(blocks)):
        order.append(("block", number))
        order += [("latch", header) for header in sorted(latches.get(number, ()), reverse=True)]
    place = {key: new for new, key in enumerate(order)}
    latched = {header for headers in latches.values() for header in headers}
    result: list[Block] = []
    for kind, number in order:
        if kind == "latch":
            result.append(Block(targets=[place["block", number]], source=blocks[number].source))
            continue
        block = blocks[number]
        block.targets = [
            t if t == EXIT else place["latch", t] if t in latched and t <= number else place["block", t]
            for t in block.targets
        ]
        result.append(block)
    return Graph(result)


class Liveness(NamedTuple):
    """Registers of each block that may be read before they are written."""

    before: list[set[str]]
    """Live registers at the beginning of each block."""
    behind: list[set[str]]
    """Live registers at the end of each block."""


def live_registers(graph: Graph) -> Liveness:
    """Solve the data-flow equations by iterating to their least fixed point."""
    uses: list[set[str]] = []
    defines: list[set[str]] = []
    for block in graph.blocks:
        used: set[str] = set()
        defined: set[str] = set()
        for instruction in (*block.body, *([block.branch] if block.branch else ())):
            reads, writes = registers_of(instruction)
            used |= reads - defined
            if instruction.predicate is None:
                defined |= writes
            else:
                used |= writes - defined
        uses.append(used)
        defines.append(defined)
    live_in = [set(u) for u in uses]
    live_out: list[set[str]] = [set() for _ in graph.blocks]
    changed = True
    while changed:
        changed = False
        for number in range(len(graph.blocks) - 1, -1, -1):
            out: set[str] = set()
            for target in graph.blocks[number].targets:
                if target != EXIT:
                    out |= live_in[target]
            into = uses[number] | (out - defines[number])
            if out != live_out[number] or into != live_in[number]:
                live_out[number], live_in[number] = out, into
                changed = True
    return Liveness(live_in, live_out)


Registers = tuple[frozenset[str], frozenset[str]]


def registers_of(instruction: Instruction) -> Registers:
    """Return the registers that an instruction reads and those that it writes. Inactive lanes keep their old values."""
    # Cached in the instruction, since several passes need it. Looking up an equal instruction would take as long.
    known: Registers | None = vars(instruction).get("registers")
    if known is None:
        known = vars(instruction)["registers"] = _registers_of(instruction)
    return known


def _registers_of(instruction: Instruction) -> Registers:
    reads: set[str] = set()
    writes: set[str] = set()
    facts = instruction.facts
    for position, operand in enumerate(instruction.operands):
        into = writes if facts.writes and position == 0 else reads
        _collect(operand, into, reads)
        if facts.updates and position == 0:
            _collect(operand, reads, reads)
    if instruction.predicate is not None:
        reads.add(instruction.predicate.name)
    if facts.reads_carry:
        reads.add(CARRY)
    if "cc" in instruction.modifiers:
        writes.add(CARRY)
    return frozenset(reads), frozenset(writes)


def _collect(operand: object, into: set[str], reads: set[str]) -> None:
    match operand:
        case Reg(name):
            into.add(name)
        case Not(reg):
            reads.add(reg.name)
        case Part(reg) | Negative(reg):
            _collect(reg, into, reads)
        case Symbol() | Imm():
            pass
        case _:
            base = getattr(operand, "base", None)
            if base is not None:
                _collect(base, reads, reads)
            for item in getattr(operand, "items", ()):
                _collect(item, into, reads)
            for item in (getattr(operand, "first", None), getattr(operand, "second", None)):
                if item is not None:
                    _collect(item, into, reads)
