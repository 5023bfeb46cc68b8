"""Groups the basic blocks that ptxas joins by turning short guarded blocks into predicated instructions.

Before: `@p bra L; ld; mul; L: add` has three basic blocks. After: one region, which the GPU executes without branching.
"""

from __future__ import annotations

from collections import Counter

from harness.emulator.launch.instruction_kinds import kind_of
from harness.execution.traffic.instruction_counts import MEMORY
from harness.ptx.blocks import Block, Graph, yields

GUARDED_INSTRUCTIONS = 8
"""The longest guarded block that ptxas predicates."""
GUARDED_LOAD_INSTRUCTIONS = 20
"""The same for a block that loads global memory. Both as ptxas 12.9 compiles for sm_75 to sm_90."""


def region_heads(graph: Graph) -> list[int]:
    """For each basic block, the number of the first block of its region; a block that stands alone is its own."""
    entries = Counter(target for block in graph.blocks for target in set(block.targets))
    heads = list(range(len(graph.blocks)))
    for number, block in enumerate(graph.blocks):
        sides = set(block.targets)
        if len(sides) != 2:
            continue
        guarded = {side for side in sides if side > number and entries[side] == 1 and _is_short(graph.blocks[side])}
        meets = (sides - guarded).union(*(graph.blocks[side].targets for side in guarded))
        if not guarded or len(meets) != 1:
            continue
        for side in guarded:
            heads[side] = heads[number]
        (meet,) = meets
        if meet > number and entries[meet] == 2:
            heads[meet] = heads[number]
    return heads


def _is_short(block: Block) -> bool:
    loads = any(kind_of(each) == MEMORY and each.facts.writes for each in block.body)
    longest = GUARDED_LOAD_INSTRUCTIONS if loads else GUARDED_INSTRUCTIONS
    size = len(block.body) + (block.branch is not None)
    return len(block.targets) == 1 and size <= longest and not any(map(yields, block.body))
