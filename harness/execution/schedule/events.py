"""Events of each thread block on the emulator, in order: memory requests, waits and copies. Plain data.

A *time* is a number of instructions: those that a warp has executed since its block began, plus those that it waited
for others at barriers and mbarriers. It is not a GPU's clock: every instruction counts as one, and memory has no
latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from harness.execution.protocol import Device, Execution
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.support.gpu_data_sheets import Gpu
from harness.support.memory_units import SECTOR_BYTES, SECTORS_PER_LINE

KINDS = ("load", "store", "atomic")
"""Kinds of memory request, by their code in `BlockEvents.accesses`."""
BARRIER, MBARRIER, CLUSTER, COPIES = range(4)
WAITS = ("barrier", "mbarrier", "cluster barrier", "cp.async wait")
"""Kinds of wait, by their code in `BlockEvents.waits`."""
CP_ASYNC, BULK = range(2)
COPY_KINDS = ("cp.async", "bulk copy")
"""Kinds of asynchronous copy, by their code in `BlockEvents.copies`."""
NO_SITE = -1

ACCESS = np.dtype(
    [("time", "i8"), ("warp", "i2"), ("site", "i4"), ("buffer", "i2"), ("kind", "u1"), ("line", "i8"), ("mask", "u1")]
)
"""Sectors of one 128-byte line that one request of a warp touched: the line's index within its buffer, and its sectors
as a 4-bit mask. A request that touches several lines has several records with the same time."""
WAIT = np.dtype([("warp", "i2"), ("site", "i4"), ("kind", "u1"), ("number", "i8"), ("begin", "i8"), ("end", "i8")])
"""A warp waits from `begin` to `end`; -1 if it never resumed. `number` identifies the barrier, gives an mbarrier's
offset in shared memory, or for copies says how many groups may stay in flight."""
COPY = np.dtype([("warp", "i2"), ("site", "i4"), ("kind", "u1"), ("sectors", "i8"), ("issued", "i8"), ("landed", "i8")])
"""An asynchronous copy of sectors of global memory. `landed` is the time of the wait that covered it; -1 if none
did."""
ARRIVAL = np.dtype([("warp", "i2"), ("site", "i4"), ("number", "i8"), ("time", "i8")])
"""A warp arrives at a barrier without waiting."""

Records = npt.NDArray[np.void]
"""A structured array."""


@dataclass(frozen=True)
class EventSite:
    """An instruction that accesses global memory or waits."""

    form: str
    """Opcode and modifiers in PTX."""
    kind: str | None
    """The kind of global memory access, one of `KINDS`; None if it makes none."""
    file: str
    """Source file, as the compiler names it; empty if unknown."""
    line: int
    """Source line; 0 if unknown."""


@dataclass(frozen=True)
class EventLaunch:
    """The facts about a launch that are needed to interpret its blocks' events."""

    number: int
    """Index of the launch in the plan."""
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    buffers: tuple[str, ...]
    """Buffer names by number, as in `counts.SiteTraffic.buffer`."""
    sites: tuple[EventSite, ...]
    shared_bytes: int
    """Static plus dynamic shared memory of one block, in bytes."""
    resident: int | None
    """Resident blocks per multiprocessor; None if no GPU was given or ptxas is missing."""

    @property
    def blocks(self) -> int:
        """Number of thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def warps(self) -> int:
        """Number of warps in one block."""
        x, y, z = self.block
        return -(-x * y * z // 32)


@dataclass(frozen=True)
class BlockEvents:
    """The events of one block. Each array is sorted by time; requests of equal time are sorted by warp."""

    block: int
    """Linear index of the block in the grid, x fastest."""
    accesses: Records
    """Requests to global memory, with dtype `ACCESS`. Local memory is not included."""
    waits: Records
    """Waits, with dtype `WAIT`."""
    copies: Records
    """Asynchronous copies, with dtype `COPY`."""
    arrivals: Records
    """Arrivals without waiting, with dtype `ARRIVAL`."""
    ends: npt.NDArray[np.int64]
    """Time at which each warp returned, by warp index."""
    steps: npt.NDArray[np.int64]
    """Times at which the whole block advanced: all warps left a barrier, or awaited bulk copies landed. In the order in
    which shared memory was sampled, which may differ from the order of times if warps wait for different copies."""

    @property
    def end(self) -> int:
        """Time at which the last warp returned."""
        return int(self.ends.max(initial=0))


SECTORS_OF_MASK = np.array([mask.bit_count() for mask in range(1 << SECTORS_PER_LINE)], np.int64)
"""Number of sectors by 4-bit sector mask."""


def sectors_of(accesses: Records) -> npt.NDArray[np.int64]:
    """Number of sectors of each `ACCESS` record."""
    counts: npt.NDArray[np.int64] = SECTORS_OF_MASK[accesses["mask"]]
    return counts


def sector_bytes(accesses: Records) -> int:
    """Bytes of these accesses at the `sectors` level; an atomic's bytes count once."""
    return SECTOR_BYTES * int(sectors_of(accesses).sum())


class EventListener(Protocol):
    """Receives the events of blocks. Methods may be called from any thread, but never concurrently."""

    def begin(self, launch: EventLaunch) -> None:
        """Called when a launch begins. All calls until `end` are about this launch."""
        ...

    def wants_shared(self, block: int) -> bool:
        """Whether to call `shared_memory` for this block whenever it advances."""
        ...

    def shared_memory(self, block: int, contents: npt.NDArray[np.uint8]) -> None:
        """Receives the contents of shared memory at the next of the block's `steps`.

        Copy the array to keep it: it is reused.
        """
        ...

    def deliver(self, events: BlockEvents) -> None:
        """Receives the events of a finished block. Blocks arrive in no particular order."""
        ...

    def end(self) -> None:
        """Called when the launch has ended."""
        ...


@runtime_checkable
class Observer(Protocol):
    """An executor that can report the events of blocks."""

    device: Device

    def observe(
        self,
        problem: BaseProblem,
        plan: Plan,
        inputs: Mapping[str, np.ndarray],
        listener: EventListener,
        gpu: Gpu | None = None,
    ) -> Execution:
        """Run a plan as `Executor.run` does, without modelled caches, and report events to `listener`.

        `gpu` determines how many blocks are resident on a multiprocessor.
        """
        ...
