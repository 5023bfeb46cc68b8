"""What the emulator saw each thread block do, in order: requests to memory, waits, copies. Plain data.

A *time* is a number of instructions: what a warp has executed since its block began, and what it waited for others at
barriers and mbarriers. It is no clock of a GPU: every instruction counts as one, and memory answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from harness.execution.counts import SECTOR_BYTES
from harness.execution.protocol import Device, Execution
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.support.gpus import Gpu

SECTORS_PER_LINE = 4
KINDS = ("load", "store", "atomic")
"""What a request does, by its number in `BlockEvents.accesses`."""
BARRIER, MBARRIER, CLUSTER, COPIES = range(4)
WAITS = ("barrier", "mbarrier", "cluster barrier", "cp.async wait")
"""What a warp waits at, by its number in `BlockEvents.waits`."""
CP_ASYNC, BULK = range(2)
COPY_KINDS = ("cp.async", "bulk copy")
"""Asynchronous copies, by their number in `BlockEvents.copies`."""
NO_SITE = -1

ACCESS = np.dtype(
    [("time", "i8"), ("warp", "i2"), ("site", "i4"), ("buffer", "i2"), ("kind", "u1"), ("line", "i8"), ("mask", "u1")]
)
"""Some sectors of one line of 128 bytes that one request of a warp touched: the line's number within its buffer, and
its sectors as four bits. A request that touches several lines has several of these, at the same time."""
WAIT = np.dtype([("warp", "i2"), ("site", "i4"), ("kind", "u1"), ("number", "i8"), ("begin", "i8"), ("end", "i8")])
"""A warp waits from `begin` to `end`, -1 where it never went on. `number`: which barrier; of an mbarrier its place in
shared memory; of copies how many groups may stay in flight."""
COPY = np.dtype([("warp", "i2"), ("site", "i4"), ("kind", "u1"), ("sectors", "i8"), ("issued", "i8"), ("landed", "i8")])
"""A copy that a warp has issued; `landed`: when a wait covered it, -1 where none did. Sectors of global memory."""
ARRIVAL = np.dtype([("warp", "i2"), ("site", "i4"), ("number", "i8"), ("time", "i8")])
"""A warp arrives at a barrier without waiting there."""

Records = npt.NDArray[np.void]
"""A structured array."""


@dataclass(frozen=True)
class EventSite:
    """An instruction that requests memory or waits."""

    form: str
    """Opcode and modifiers in PTX."""
    kind: str | None
    """What it does to global memory, one of `KINDS`; None where nothing."""
    file: str
    """Source file, as the compiler names it; empty where it gave none."""
    line: int
    """Source line, or 0."""


@dataclass(frozen=True)
class EventLaunch:
    """A launch, as far as what its blocks did is understood by it."""

    number: int
    """Its place in the plan."""
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    buffers: tuple[str, ...]
    """Names by number, as `counts.SiteTraffic` has them."""
    sites: tuple[EventSite, ...]
    shared_bytes: int
    """Of one block, static and dynamic."""
    resident: int | None
    """Blocks that one multiprocessor holds at a time; None where nobody asked which GPU, or ptxas is missing."""

    @property
    def blocks(self) -> int:
        """Thread blocks of the grid."""
        x, y, z = self.grid
        return x * y * z

    @property
    def warps(self) -> int:
        """Of one block."""
        x, y, z = self.block
        return -(-x * y * z // 32)


@dataclass(frozen=True)
class BlockEvents:
    """All that one block did. Each array is in the order of its times, requests of one time in that of the warps."""

    block: int
    """Its number in the grid, x fastest."""
    accesses: Records
    """Requests to global memory, of `ACCESS`. Local memory is left out."""
    waits: Records
    """Of `WAIT`."""
    copies: Records
    """Of `COPY`."""
    arrivals: Records
    """Of `ARRIVAL`."""
    ends: npt.NDArray[np.int64]
    """When each warp returned, by its number in the block."""
    steps: npt.NDArray[np.int64]
    """When the block got on as a whole: all its warps left a barrier, or bulk copies landed for one that waited. In the
    order in which shared memory was seen, which where warps wait for different copies is not that of the times."""

    @property
    def end(self) -> int:
        """When the last warp returned."""
        return int(self.ends.max(initial=0))


SECTORS_OF_MASK = np.array([mask.bit_count() for mask in range(1 << SECTORS_PER_LINE)], np.int64)
"""How many sectors of a line the bits of a mask say."""


def sectors_of(accesses: Records) -> npt.NDArray[np.int64]:
    """How many sectors each entry of `ACCESS` has."""
    counts: npt.NDArray[np.int64] = SECTORS_OF_MASK[accesses["mask"]]
    return counts


def sector_bytes(accesses: Records) -> int:
    """Bytes of these accesses at the `sectors` level, an atomic's once."""
    return SECTOR_BYTES * int(sectors_of(accesses).sum())


class EventListener(Protocol):
    """Who is told what blocks do. Called from any thread, but one call after the other."""

    def begin(self, launch: EventLaunch) -> None:
        """A launch begins; all that comes until `end` is about it."""
        ...

    def wants_shared(self, block: int) -> bool:
        """Whether to tell what is in the block's shared memory whenever it gets on."""
        ...

    def shared_memory(self, block: int, contents: npt.NDArray[np.uint8]) -> None:
        """What is there at the next of the block's `steps`. It will not stay so: who wants to keep it copies it."""
        ...

    def deliver(self, events: BlockEvents) -> None:
        """A block is over. In no particular order."""
        ...

    def end(self) -> None:
        """The launch is over."""
        ...


@runtime_checkable
class Observer(Protocol):
    """An executor that tells what blocks do."""

    device: Device

    def observe(
        self,
        problem: BaseProblem,
        plan: Plan,
        inputs: Mapping[str, np.ndarray],
        listener: EventListener,
        gpu: Gpu | None = None,
    ) -> Execution:
        """As `Executor.run`, but for modelled caches; `gpu` says whose multiprocessors hold the blocks."""
        ...
