"""Models a GPU's caches behind the sector counts: the traffic between L1 and L2, and between L2 and DRAM.

Blocks are assigned to multiprocessors in order, each as many as fit. All resident blocks execute the same number of
instructions per unit of time, and a block that ends makes room for the next. Each request goes through the L1 of its
multiprocessor (write-through; stored data can be read back), and misses go through the one L2 (write-back; a stored
sector is not fetched first). An L2 of two partitions caches a line in its own partition and, if a multiprocessor of the
other one read it, there as well. DRAM delivers pairs of sectors.

Only what affects counts is modelled. The constants in `cache_layout` and `residency` were determined with small kernels
on an H200 (scripts/recording/cache_probes.py), most of which cycle through a range of memory. Two of them, the usable
parts of L2 and of the smallest L1, are not fully determined by these kernels and were chosen to match the attention
kernels.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import cache_layout as at
from harness.emulator.abi.cache_slots import SLOT
from harness.emulator.launch.tracing import Accesses
from harness.emulator.memory.residency import Residency
from harness.emulator.native.object_loading import load_caches
from harness.support.errors import PlanError
from harness.support.gpu_data_sheets import Gpu
from harness.support.memory_units import GIB, LINE_BYTES, SECTOR_BYTES

ALLOCATION_BYTES = 512
"""Alignment of buffers by a GPU's allocator."""
PARTITION_RUNS = (16, 48, 50, 18)
"""Number of consecutive multiprocessors that belong to one L2 partition, then to the other, and so on, in the order in
which blocks are assigned.  As on an H200, by graphics processing clusters (GPCs). `%smid` shows where blocks run, and
the number of sectors that pass between the partitions when a single multiprocessor reads shows its partition."""


@dataclass(frozen=True)
class CacheSizes:
    """The caches of one GPU except for L1, whose size depends on the kernel."""

    multiprocessors: int
    l2_bytes: int
    """Usable size of L2."""
    l2_partitions: int

    @classmethod
    def of(cls, gpu: Gpu, l2_bytes: int | None = None) -> CacheSizes:
        """Sizes of a GPU in the table, optionally with another size of L2."""
        size = gpu.l2_bytes if l2_bytes is None else l2_bytes
        return cls(gpu.multiprocessors, round(at.L2_USABLE * size), gpu.l2_partitions)


@dataclass(frozen=True)
class CacheCount:
    """Sectors of one buffer during one launch."""

    buffer: str
    l2_read: int
    """Sectors read from L2 after missing L1."""
    l2_write: int
    dram_read: int
    """Sectors read from DRAM after missing L2."""
    dram_write: int


class MemoryHierarchy:
    """The caches during one run of a plan, initially empty."""

    def __init__(self, sizes: CacheSizes, buffers: Sequence[tuple[str, int]]) -> None:
        """`buffers`: name and bytes, in address order."""
        self._sizes = sizes
        self._names = [name for name, _ in buffers]
        ends = np.cumsum([-(-size // ALLOCATION_BYTES) * ALLOCATION_BYTES // LINE_BYTES for _, size in buffers])
        self.first_lines: list[int] = [0, *ends[:-1].tolist()]
        """Number of each buffer's first line."""
        if ends[-1] >= 1 << at.LINE_BITS:
            limit = (LINE_BYTES << at.LINE_BITS) / GIB
            raise PlanError(f"the cache model takes plans of at most {limit:.0f} GiB; this one has more")
        self._state = np.zeros(len(SLOT), dtype=np.int64)
        self._held: dict[str, npt.NDArray[np.generic]] = {}
        self._advance = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(load_caches())
        self._attach("COUNTERS", np.zeros((len(buffers), len(at.COUNTERS)), dtype=np.int64))
        self._attach("FIRST_LINES", np.array(self.first_lines, dtype=np.int64))
        self._state[SLOT["BUFFER_COUNT"]] = len(buffers)
        self.flush()

    def flush(self) -> None:
        """Empty L2 without writing it back."""
        lines = max(1, self._sizes.l2_bytes // self._sizes.l2_partitions // LINE_BYTES)
        ways = min(at.L2_WAYS, lines)
        sets = lines // ways
        count = self._sizes.l2_partitions * sets * ways
        for name, dtype in (("TAGS", np.int32), ("VALID", np.uint8), ("DIRTY", np.uint8), ("USED", np.int64)):
            self._attach(f"L2_{name}", np.zeros(count, dtype=dtype))
        self._state[SLOT["L2_SETS"]] = sets
        self._state[SLOT["L2_SET_WAYS"]] = ways
        self._state[SLOT["L2_PARTITIONS"]] = self._sizes.l2_partitions

    def launch(self, blocks: int, residency: Residency) -> LaunchCaches:
        """Begin a kernel: L1 is empty, and L2 is as the previous kernel left it."""
        ways = at.L1_WAYS_DRAWN if residency.l1_random else at.L1_WAYS
        sets = residency.l1_bytes // LINE_BYTES // ways
        count = self._sizes.multiprocessors * sets * ways
        for name, dtype in (("TAGS", np.int32), ("VALID", np.uint8), ("USED", np.int64)):
            self._attach(f"L1_{name}", np.zeros(max(1, count), dtype=dtype))
        self._state[SLOT["L1_SETS"]] = sets
        self._state[SLOT["L1_SET_WAYS"]] = ways
        self._state[SLOT["L1_RANDOM"]] = int(residency.l1_random)
        places = self._sizes.multiprocessors * residency.blocks
        sm = np.arange(places, dtype=np.int64) % self._sizes.multiprocessors
        # Other numbers of multiprocessors are divided in the same proportion.
        run = np.searchsorted(np.cumsum(PARTITION_RUNS) / sum(PARTITION_RUNS), (sm + 0.5) / self._sizes.multiprocessors)
        self._attach("SM", sm)
        self._attach("PARTITION", run % self._sizes.l2_partitions)
        for name in ("NEXT_ACCESS", "END_ACCESS", "ACCESS_TIME", "STORED_LINE", "STORED_MASK"):
            self._attach(name, np.zeros(places, dtype=np.int64))
        self._state[SLOT["RESIDENTS"]] = places
        self._counters[:] = 0
        return LaunchCaches(self, blocks, places)

    @property
    def dirty_bytes(self) -> int:
        """Bytes stored in L2 but not yet in DRAM."""
        return SECTOR_BYTES * int(np.unpackbits(self._held["L2_DIRTY"].view(np.uint8)).sum())

    @property
    def _counters(self) -> npt.NDArray[np.int64]:
        return self._held["COUNTERS"].view(np.int64)

    def counts(self) -> tuple[CacheCount, ...]:
        """Sectors during the latest launch, by buffer."""
        rows = self._counters.tolist()
        return tuple(CacheCount(name, *row) for name, row in zip(self._names, rows))

    def _attach(self, slot: str, array: npt.NDArray[np.generic]) -> None:
        self._held[slot] = array
        self._state[SLOT[slot]] = array.ctypes.data

    # Used by LaunchCaches ------------------------------------------------------------------------------------------

    def assign_to_multiprocessor(self, place: int, accesses: Accesses) -> None:
        """Assign a block to a resident place."""
        now, delay = int(self._state[SLOT["NOW"]]), int(accesses[0]) & ((1 << at.DELAY_BITS) - 1)
        self._held["ACCESS_TIME"].view(np.int64)[place] = now + delay
        self._held["STORED_LINE"].view(np.int64)[place] = -1
        self._held["END_ACCESS"].view(np.int64)[place] = accesses.ctypes.data + accesses.nbytes
        self._held["NEXT_ACCESS"].view(np.int64)[place] = accesses.ctypes.data

    def free_places(self) -> list[int]:
        """Places without a block."""
        free: list[int] = np.flatnonzero(self._held["NEXT_ACCESS"].view(np.int64) == 0).tolist()
        return free

    def advance(self) -> int:
        """Run resident blocks until at least one has ended; returns the number of ended blocks."""
        return int(self._advance(self._state.ctypes.data))


class LaunchCaches:
    """Simulates the accesses of one kernel's blocks. Several threads may call `deliver`."""

    def __init__(self, hierarchy: MemoryHierarchy, blocks: int, places: int) -> None:
        self._hierarchy = hierarchy
        self.first_lines = hierarchy.first_lines
        self._blocks = blocks
        self._seated: list[Accesses | None] = [None] * places
        self._free = list(range(places))
        self._next = 0
        self._waiting: dict[int, Accesses] = {}
        self._lock = threading.Lock()

    def deliver(self, block: int, accesses: Accesses) -> None:
        """Add the accesses of a block, and simulate as far as possible before the next block is available."""
        self._waiting[block] = accesses
        # A thread that finds the caches busy continues emulating, unless so much is queued that memory would fill up.
        if self._lock.acquire(blocking=len(self._waiting) > len(self._seated)):
            try:
                self._run()
            finally:
                self._lock.release()

    def finish(self) -> tuple[CacheCount, ...]:
        """Simulate the rest after all blocks were delivered, and return the launch's counts."""
        with self._lock:
            self._run()
        assert self._next == self._blocks and not self._waiting
        return self._hierarchy.counts()

    def _run(self) -> None:
        while self._seat_all():
            self._hierarchy.advance()
            for place in self._hierarchy.free_places():
                if self._seated[place] is not None:
                    self._seated[place] = None
                    self._free.append(place)

    def _seat_all(self) -> bool:
        """Assign the next blocks to free places; returns whether all required blocks are present and there is work."""
        while self._free and self._next < self._blocks:
            accesses = self._waiting.pop(self._next, None)
            if accesses is None:
                return False
            self._next += 1
            if len(accesses):
                place = self._free.pop(0)
                self._seated[place] = accesses
                self._hierarchy.assign_to_multiprocessor(place, accesses)
        return any(accesses is not None for accesses in self._seated)
