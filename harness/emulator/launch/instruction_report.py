"""Converts execution counts of basic blocks to instructions by kind and source line, and to load-to-use distances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from harness.emulator.abi import layout as at
from harness.emulator.launch.block_executions import BlockExecutions
from harness.emulator.launch.instruction_kinds import kind_of, product_flops, tensor_memory_flops
from harness.execution.traffic.instruction_counts import MEMORY, TENSOR, InstructionCount, InstructionReport, LoadWait
from harness.ptx.blocks import Block, Graph, build_graph, registers_of, yields
from harness.ptx.call_parameters import lower_call_parameters
from harness.ptx.inline import inline_calls
from harness.ptx.instructions import Imm, Instruction
from harness.ptx.parsing.parser import parse
from harness.support.pipe_rates import RESULT_CYCLES

BATCH_INSTRUCTIONS = 64
"""Loads issued within this many instructions of each other are awaited together."""
MOST_STEPS = 1 << 17
"""Maximum number of basic block executions that are analysed, which takes about half a second."""


def instruction_report(
    ptx: str,
    entry: str,
    executed: BlockExecutions,
    are_connected: bool = False,
    tensor_results: Mapping[tuple[str, str, int], int] | None = None,
) -> InstructionReport:
    """The instructions that the kernel `entry` of the module `ptx` executed. Raises what parsing raises.

    `tensor_results` are the elements of D that `tcgen05.mma` computed, whose shape is known at run time only, by form,
    source file and line.
    """
    graph = _graph_of(ptx, entry)
    waits, warps = _waits(graph, executed)
    dependent = sum(
        entered * _dependent_cycles(block) for block, (entered, _) in zip(graph.blocks, executed.counts.tolist())
    )
    clusters = tuple(executed.clusters.tolist())
    return InstructionReport(
        _by_place(graph, executed, tensor_results or {}), clusters, waits, warps, are_connected, dependent
    )


@lru_cache(maxsize=4)
def _graph_of(ptx: str, entry: str) -> Graph:
    """The basic blocks, numbered as in `codegen.kernel.generate`."""
    module = parse(ptx)
    flat = inline_calls(module, module.functions[entry])
    lower_call_parameters(flat)
    return build_graph(flat)


def _by_place(
    graph: Graph, executed: BlockExecutions, tensor_results: Mapping[tuple[str, str, int], int]
) -> tuple[InstructionCount, ...]:
    rows: dict[tuple[str, str, str, int], list[int]] = {}
    for block, (warps, lanes) in zip(graph.blocks, executed.counts.tolist(), strict=True):
        for instruction in (*block.body, *([block.branch] if block.branch else ())):
            source = instruction.source
            place = (source.file, source.line) if source else ("", 0)
            row = rows.setdefault((kind_of(instruction), instruction.form, *place), [0, 0, 0, 0])
            for column, amount in enumerate((1, warps, lanes, warps * product_flops(instruction))):
                row[column] += amount
    for (form, file, line), results in tensor_results.items():
        rows[TENSOR, form, file, line][-1] += tensor_memory_flops(form, results)
    return tuple(InstructionCount(*key, *rows[key]) for key in sorted(rows))


def _dependent_cycles(block: Block) -> int:
    """Cycles of the longest dependency chain in the block, without loads of global memory."""
    ready: dict[str, int] = {}
    longest = 0
    for instruction in (*block.body, *([block.branch] if block.branch else ())):
        reads, writes = registers_of(instruction)
        cycles = max((ready.get(name, 0) for name in reads), default=0) + RESULT_CYCLES[kind_of(instruction)]
        ready.update(dict.fromkeys(writes, cycles))
        longest = max(longest, cycles)
    return longest


# Waits ---------------------------------------------------------------------------------------------------------------


class _Event(NamedTuple):
    """An instruction related to loads or copies."""

    position: int
    """Position in its block."""
    instruction: Instruction
    reads: frozenset[str]
    """Registers that it reads and that loads have written."""
    is_load: bool
    """Whether it loads or copies from global memory."""
    loaded: frozenset[str]
    """Registers that it loads; empty for a copy."""
    commits: bool
    waits_for: int | None
    """For a wait: number of groups of copies that may stay in flight; else None."""


@dataclass
class _Warp:
    """The state of one warp along its path."""

    position: int = 0
    """Number of instructions executed before the current basic block."""
    region_position: int = 0
    """The same before the current region."""
    has_waited: bool = False
    """Whether it has waited, in this region, for a load issued by it: ptxas moves the other loads before that."""
    pending: dict[str, tuple[int, Instruction]] = field(default_factory=dict)
    """Time and instruction of pending loads, by register."""
    open_copy: tuple[int, Instruction] | None = None
    """The latest copy that is not yet committed to a group."""
    groups: list[tuple[int, Instruction]] = field(default_factory=list)
    """The latest copy of each group in flight."""


_Found = Counter[tuple[bool, str, int, int, int]]


GUARDED_INSTRUCTIONS = 8
"""The longest guarded block that ptxas predicates."""
GUARDED_LOAD_INSTRUCTIONS = 20
"""The same for a block that loads global memory. Both as ptxas 12.9 compiles for sm_75 to sm_90."""


def region_heads(graph: Graph) -> list[int]:
    """For each basic block, the number of the first block of its region; a block that stands alone is its own.

    A region is made of basic blocks that ptxas joins by turning short guarded blocks into predicated instructions.
    Before: `@p bra L; ld; mul; L: add` has three basic blocks. After: one region, which the GPU executes without
    branching.
    """
    entries = Counter(target for block in graph.blocks for target in set(block.targets))
    heads = list(range(len(graph.blocks)))
    for number, block in enumerate(graph.blocks):
        if len(set(block.targets)) != 2:
            continue
        one, other = block.targets
        guarded, meet = _guarded(graph, entries, one)
        opposite, other_meet = _guarded(graph, entries, other)
        if meet == other:  # a branch over the first side
            opposite = []
        elif other_meet == one:
            guarded, meet = [], one
        elif meet != other_meet:
            continue
        members = [*guarded, *opposite]
        if members and min(members) > number:
            heads[meet if meet > number and entries[meet] == 2 else number] = heads[number]
            for member in members:
                heads[member] = heads[number]
    return heads


def _guarded(graph: Graph, entries: Counter[int], target: int) -> tuple[list[int], int]:
    """The blocks from a branch's target on that ptxas predicates, and the block behind them."""
    found: list[int] = []
    body: list[Instruction] = []
    while target >= 0 and entries[target] == 1 and len(graph.blocks[target].targets) == 1:
        body += graph.blocks[target].body
        if not _is_short(body):
            break
        found.append(target)
        (target,) = graph.blocks[target].targets
    return found, target


def _is_short(body: list[Instruction]) -> bool:
    loads = any(kind_of(each) == MEMORY and each.facts.writes for each in body)
    longest = GUARDED_LOAD_INSTRUCTIONS if loads else GUARDED_INSTRUCTIONS
    return len(body) <= longest and not any(map(yields, body))


def _waits(graph: Graph, executed: BlockExecutions) -> tuple[tuple[LoadWait, ...], int]:
    events = _events(graph)
    heads = region_heads(graph)
    sizes = [len(block.body) + (block.branch is not None) for block in graph.blocks]
    warps: dict[int, _Warp] = {}
    found: _Found = Counter()
    for step in executed.path[:MOST_STEPS].tolist():
        number, block = step >> at.PATH_WARP_SHIFT, step & ((1 << at.PATH_WARP_SHIFT) - 1)
        warp = warps.setdefault(number, _Warp())
        if heads[block] == block:
            warp.region_position, warp.has_waited = warp.position, False
        for event in events[block]:
            _follow(warp, event, found)
        warp.position += sizes[block]
    return tuple(LoadWait(*key, waits) for key, waits in sorted(found.items())), len(warps)


def _events(graph: Graph) -> list[list[_Event]]:
    loads: set[str] = set()
    for block in graph.blocks:
        for instruction in block.body:
            if _loads(instruction):
                loads |= registers_of(instruction)[1]
    return [
        [
            event
            for position, instruction in enumerate((*block.body, *([block.branch] if block.branch else ())))
            if (event := _event(position, instruction, loads)) is not None
        ]
        for block in graph.blocks
    ]


def _event(position: int, instruction: Instruction, loads: set[str]) -> _Event | None:
    reads, writes = registers_of(instruction)
    is_load = _loads(instruction)
    words = set(instruction.modifiers)
    is_copy = instruction.row_name == "cp"
    commits = is_copy and "commit_group" in words
    waits_for = None
    if is_copy and "wait_all" in words:
        waits_for = 0
    elif is_copy and "wait_group" in words:
        count = instruction.operands[0]
        waits_for = count.value if isinstance(count, Imm) else 0
    used = frozenset(reads & loads)
    if not is_load and not used and not commits and waits_for is None:
        return None
    loaded = frozenset(writes) if is_load else frozenset()
    return _Event(position, instruction, used, is_load, loaded, commits, waits_for)


def _loads(instruction: Instruction) -> bool:
    """Whether it is a load of global memory, or a copy from there that its own warp awaits."""
    memory = instruction.facts.memory
    if memory is None or kind_of(instruction) != MEMORY:
        return False
    return instruction.row_name == "cp" or (
        not memory.asynchronous and instruction.facts.writes and memory.in_global == "load"
    )


def _follow(warp: _Warp, event: _Event, found: _Found) -> None:
    here = warp.position + event.position
    awaited = [warp.pending[name] for name in event.reads if name in warp.pending]
    if awaited:
        issued, load = max(awaited, key=lambda each: each[0])
        is_own = issued >= warp.region_position
        if not (is_own and warp.has_waited):
            _note(found, False, load, event.instruction, here - issued)
        warp.has_waited |= is_own
        warp.pending = {name: each for name, each in warp.pending.items() if each[0] > issued + BATCH_INSTRUCTIONS}
    if event.waits_for is not None:
        left = [] if event.waits_for == 0 else warp.groups[-event.waits_for :]
        ended = warp.groups[: len(warp.groups) - len(left)]
        if event.waits_for == 0 and "wait_all" in event.instruction.modifiers and warp.open_copy is not None:
            ended, warp.open_copy = [*ended, warp.open_copy], None
        if ended:
            issued, load = max(ended, key=lambda each: each[0])
            _note(found, True, load, event.instruction, here - issued)
        warp.groups = left
    if event.commits:
        if warp.open_copy is not None:
            warp.groups.append(warp.open_copy)
        warp.open_copy = None
    elif event.is_load and not event.loaded:
        warp.open_copy = (here, event.instruction)
    for name in event.loaded:
        warp.pending[name] = (here, event.instruction)


def _note(found: _Found, is_copy: bool, load: Instruction, wait: Instruction, distance: int) -> None:
    file, line = (load.source.file, load.source.line) if load.source else ("", 0)
    found[is_copy, file, line, wait.source.line if wait.source else 0, distance] += 1
