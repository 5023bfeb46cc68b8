"""Groups the basic blocks that ptxas joins by turning short guarded blocks into predicated instructions.

Before: `@p bra L; ld; mul; L: add` has three basic blocks. After: one region, which the GPU executes without branching.
"""

from __future__ import annotations

from collections import Counter

from harness.emulator.launch.instruction_kinds import kind_of
from harness.execution.traffic.instruction_counts import MEMORY
from harness.ptx.blocks import Graph, yields
from harness.ptx.instructions import Instruction

GUARDED_INSTRUCTIONS = 8
"""The longest guarded block that ptxas predicates."""
GUARDED_LOAD_INSTRUCTIONS = 20
"""The same for a block that loads global memory. Both as ptxas 12.9 compiles for sm_75 to sm_90."""


def region_heads(graph: Graph) -> list[int]:
    """For each basic block, the number of the first block of its region; a block that stands alone is its own."""
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
