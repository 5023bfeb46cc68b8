"""Which accesses of a kernel some path of its control flow connects without a barrier.

A race between a store and a load does not show which of them is meant to come first. The control flow does: if a path
leads from the store to the load without a barrier, and none leads back, then a barrier is missing on that path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.ptx.blocks import EXIT, Block, Graph, is_block_barrier
from harness.ptx.instructions import Imm, Instruction
from harness.ptx.opcodes import ATOMIC, LOAD, MBARRIER, Flow

NO_BARRIER, WARP_BARRIER, BLOCK_BARRIER = range(3)
"""What ends a part of the code: nothing, `bar.warp.sync`, or a barrier of the block or cluster."""
_OBSERVES = {"volatile", "relaxed", "acquire"}
"""Modifiers of loads that wait for other threads."""


@dataclass(frozen=True)
class BarrierPaths:
    """The control flow of a kernel, divided into parts without barriers."""

    ends: tuple[int, ...]
    """The barrier at the end of each part."""
    targets: tuple[tuple[int, ...], ...]
    """The parts that may follow each part."""
    part_of: tuple[int, ...]
    """The part of each site; -1 if unknown."""

    @classmethod
    def of(cls, graph: Graph, sites: Sequence[Instruction]) -> BarrierPaths | None:
        """Divide a graph. `sites` are the instructions by number, in the order in which they are emitted.

        None if some of its threads may synchronise without the others: by a barrier other than 0, by an mbarrier, or by
        a lock or a flag.
        """
        if any(_is_partial(instruction) for block in graph.blocks for instruction in block.body):
            return None
        ends: list[int] = []
        targets: list[tuple[int, ...]] = []
        parts: dict[int, int] = {}
        first_part: list[int] = []
        for block in graph.blocks:
            first_part.append(len(ends))
            for instruction in _instructions(block):
                parts[id(instruction)] = len(ends)
                if _barrier(instruction) == WARP_BARRIER:
                    targets.append((len(ends) + 1,))
                    ends.append(WARP_BARRIER)
            last = block.body[-1] if block.body else None
            ends.append(BLOCK_BARRIER if last is not None and _barrier(last) == BLOCK_BARRIER else NO_BARRIER)
            targets.append(())
        for number, block in enumerate(graph.blocks):
            last_part = first_part[number + 1] - 1 if number + 1 < len(first_part) else len(ends) - 1
            targets[last_part] = tuple(first_part[target] for target in block.targets if target != EXIT)
        return cls(tuple(ends), tuple(targets), tuple(parts.get(id(site), -1) for site in sites))

    @classmethod
    def from_fields(cls, fields: dict[str, Any] | None) -> BarrierPaths | None:
        """Restore from JSON."""
        if fields is None:
            return None
        return cls(tuple(fields["ends"]), tuple(map(tuple, fields["targets"])), tuple(fields["part_of"]))

    def without_barrier(self, first: int, second: int, in_one_warp: bool = False) -> bool:
        """Whether some path leads from site `first` to site `second` without a barrier.

        `in_one_warp`: whether `bar.warp.sync` counts as a barrier.
        """
        return self._reaches(first, second, WARP_BARRIER if in_one_warp else BLOCK_BARRIER)

    def in_one_loop(self, first: int, second: int) -> bool:
        """Whether paths lead from each of two sites to the other."""
        any_barrier = BLOCK_BARRIER + 1
        return self._reaches(first, second, any_barrier) and self._reaches(second, first, any_barrier)

    def _reaches(self, first: int, second: int, least_barrier: int) -> bool:
        """Whether a path leads from `first` to `second` that no barrier of at least this kind interrupts."""
        start, goal = self.part_of[first], self.part_of[second]
        if start < 0 or goal < 0:
            return False
        if start == goal and first < second:
            return True
        seen: set[int] = set()
        pending = [start]
        while pending:
            part = pending.pop()
            for target in self.targets[part] if self.ends[part] < least_barrier else ():
                if target == goal:
                    return True
                if target not in seen:
                    seen.add(target)
                    pending.append(target)
        return False


def _is_partial(instruction: Instruction) -> bool:
    """Whether the instruction may synchronise a part of the block."""
    memory, words = instruction.facts.memory, instruction.modifiers
    if memory is MBARRIER or (memory is ATOMIC and ("cas" in words or "exch" in words)):
        return True
    if memory is LOAD and not _OBSERVES.isdisjoint(words):
        return True
    return is_block_barrier(instruction) and "red" not in instruction.modifiers and instruction.operands != (Imm(0),)


def _instructions(block: Block) -> list[Instruction]:
    return [*block.body, *([] if block.branch is None else [block.branch])]


def _barrier(instruction: Instruction) -> int:
    """The barrier at which the threads wait in this instruction."""
    flow = instruction.facts.flow
    if flow is Flow.CLUSTER or is_block_barrier(instruction):
        return BLOCK_BARRIER
    return WARP_BARRIER if flow is Flow.BARRIER and "warp" in instruction.modifiers else NO_BARRIER
