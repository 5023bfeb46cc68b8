"""The state of one host core: its context, and the memory of the blocks that run together (usually one)."""

from __future__ import annotations

import ctypes
import functools
import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import copy_layout as copies
from harness.emulator.abi import layout as at
from harness.emulator.abi import tensor_memory_layout as tensor
from harness.emulator.abi.context import SLOT
from harness.emulator.abi.sanitizer_layout import shadow_cell_bytes
from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.launch.block_executions import ExecutionCounters
from harness.emulator.launch.configuration import Geometry, LaunchOptions
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.tracing import TraceBuffer
from harness.emulator.native.object_loading import load_async_proxy, load_copies, load_tensor_cores

if TYPE_CHECKING:
    from harness.emulator.launch.event_recording import EventBuffer


FIRST_CAPACITY = 32
NARROWEST_BYTES = 4
"""Minimum bytes written by one copy of one lane (PTX ISA 9.7.9.25.3.1)."""
_ON_FULL = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def capacity_limit(shared_bytes: int) -> int:
    """Number of requests of one warp beyond which two of them must overlap, as a power of two."""
    return int(max(FIRST_CAPACITY, 1 << (shared_bytes // NARROWEST_BYTES).bit_length()))


class CopyQueues:
    """The queues of one worker's warps. The runtime calls back if one is full."""

    def __init__(self, context: npt.NDArray[np.int64], warps: int, shared_bytes: int) -> None:
        self._context = context
        self._limit = capacity_limit(shared_bytes)
        self._queues = np.zeros((warps, copies.QUEUE_BYTES // 8), dtype=np.int64)
        self._rings = [self._ring(FIRST_CAPACITY) for _ in range(warps)]
        for warp in range(warps):
            self._point(warp)
        # ctypes frees the callback when nothing references it.
        self._on_full = _ON_FULL(self._grow)
        context[SLOT["DROP_COPIES"]] = load_copies()
        context[SLOT["COPY_QUEUES"]] = self._queues.ctypes.data
        context[SLOT["COPY_QUEUE_FULL"]] = ctypes.cast(self._on_full, ctypes.c_void_p).value or 0

    @staticmethod
    def _ring(capacity: int) -> npt.NDArray[np.int64]:
        return np.empty((capacity, copies.REQUEST_BYTES // 8), dtype=np.int64)

    def _point(self, warp: int) -> None:
        self._queues[warp, copies.REQUESTS // 8] = self._rings[warp].ctypes.data
        self._queues[warp, copies.CAPACITY // 8] = len(self._rings[warp])

    def _grow(self, context: int) -> None:
        """Double the capacity of the current warp's queue, up to the limit."""
        warp = int(self._context[SLOT["FIRST_WARP"]] + self._context[SLOT["WARP_INDEX"]])
        old = self._rings[warp]
        if len(old) >= self._limit:
            return
        head, tail = (int(self._queues[warp, word // 8]) for word in (copies.HEAD, copies.TAIL))
        held = np.arange(head, tail)
        self._rings[warp] = self._ring(2 * len(old))
        self._rings[warp][held % (2 * len(old))] = old[held % len(old)]
        self._point(warp)


class AsyncProxy:
    """The memory of one worker. Pages that are never written use no physical memory."""

    def __init__(self, context: npt.NDArray[np.int64], blocks: int, warps: int, shared_bytes: int) -> None:
        """`warps` and `shared_bytes` are totals of all blocks that run together."""
        capacity = proxy.COPY_CAPACITY << (blocks - 1).bit_length()
        self.state = np.zeros(proxy.STATE_BYTES // 8, dtype=np.int64)
        self._parts = {
            proxy.COPIES: aligned_zeros(proxy.COPY_BYTES * capacity),
            proxy.GROUPS: aligned_zeros(8 * at.LANES * warps),
            proxy.QUEUES: aligned_zeros(proxy.QUEUE_BYTES * warps),
            proxy.SCRATCH: aligned_zeros(proxy.SCRATCH_BYTES),
            proxy.EXPECTED_BY: aligned_zeros(4 * (shared_bytes // proxy.MBARRIER_BYTES + 1)),
        }
        for word, memory in self._parts.items():
            self.state[word // 8] = memory.ctypes.data
        self.state[proxy.CAPACITY // 8] = capacity
        context[SLOT["ASYNC_PROXY"]] = self.state.ctypes.data
        for name, address in load_async_proxy().items():
            context[SLOT[name]] = address

    def expected_by(self, place: int) -> int | None:
        """The instruction that last set the expected bytes of an mbarrier's phase; None if none did."""
        site = int(self._parts[proxy.EXPECTED_BY].view(np.int32)[place // proxy.MBARRIER_BYTES])
        return site - 1 if site else None


class TensorMemory:
    """The tensor memory of one worker's blocks, and the operations on it that are in flight.

    Pages that are never written use no physical memory; those of the shadow cells are for the sanitizer.
    """

    def __init__(self, context: npt.NDArray[np.int64], state: npt.NDArray[np.int64], blocks: int, warps: int) -> None:
        """`state` is that of the asynchronous operations; `warps` is the total of all blocks that run together."""
        self._state = np.zeros(tensor.STATE_BYTES // 8, dtype=np.int64)
        self._parts = {
            tensor.MEMORIES: aligned_zeros(tensor.BLOCK_BYTES * blocks),
            tensor.OPERATIONS: aligned_zeros(tensor.OPERATION_BYTES * tensor.CAPACITY),
            tensor.SCRATCH: aligned_zeros(tensor.SCRATCH_BYTES),
            tensor.WAITS: aligned_zeros(16 * warps),
            tensor.SHADOW: aligned_zeros(blocks * tensor.COLUMNS * tensor.GROUPS * shadow_cell_bytes(warps)),
        }
        for word, memory in self._parts.items():
            self._state[word // 8] = memory.ctypes.data
        slots, land = load_tensor_cores()
        self._state[tensor.LAND // 8] = land
        state[proxy.TENSOR_MEMORY // 8] = self._state.ctypes.data
        for name, address in slots.items():
            context[SLOT[name]] = address


class Worker:
    """One core's context, with the memory of one cluster of blocks at a time, see `abi/cluster_memory.py`."""

    def __init__(self, facts: KernelFacts, geometry: Geometry, options: LaunchOptions) -> None:
        warps, blocks = geometry.warps, geometry.blocks_per_cluster
        self.warp_pitch = geometry.warp_pitch
        self.warp_bytes = -(-(at.REGISTERS + facts.register_bytes) // 64) * 64
        shared = facts.shared_bytes + geometry.dynamic_shared_bytes
        self.shared_pitch = geometry.shared_pitch(shared)
        all_warps, all_shared = self.warp_pitch * blocks, self.shared_pitch * blocks
        self.context = np.zeros(len(SLOT), dtype=np.int64)
        self.shared = aligned_zeros(all_shared)
        self.warps = aligned_zeros(self.warp_bytes * all_warps)
        self.locals = aligned_zeros(facts.local_bytes * at.LANES * all_warps)
        self.order = np.zeros(warps * blocks, dtype=np.int32)
        self.barriers = np.zeros(at.BARRIER_SLOTS * blocks, dtype=np.int64)
        self.live_warps = np.zeros(blocks, dtype=np.int32)
        self.copies = CopyQueues(self.context, all_warps, shared) if facts.copies else None
        self.async_proxy = AsyncProxy(self.context, blocks, all_warps, all_shared) if facts.async_proxy else None
        self.tensor_memory: TensorMemory | None = None
        if self.async_proxy is not None and facts.tensor_memory:
            self.tensor_memory = TensorMemory(self.context, self.async_proxy.state, blocks, all_warps)
        self.trace: TraceBuffer | None = None
        self.events: EventBuffer | None = None
        self.executions: ExecutionCounters | None = None
        self.number = 0
        """Number of the cluster that was started last, among those that run; only if something is recorded of each."""
        self.set("NEXT_CLUSTER", -1)
        self.set("SHARED_ORIGIN", self.shared.ctypes.data)
        self.set("SHARED_PITCH", self.shared_pitch)
        self.set("SHARED_SIZE", shared)
        self.set("WARPS_ORIGIN", self.warps.ctypes.data)
        self.set("WARP_COUNT", warps)
        self.set("WARP_PITCH", self.warp_pitch)
        self.set("WARP_BYTES", self.warp_bytes)
        self.set("LOCALS_ORIGIN", self.locals.ctypes.data)
        self.set("LOCAL_SIZE", facts.local_bytes)
        self.set("ORDER", self.order.ctypes.data)
        self.set("BARRIERS_ORIGIN", self.barriers.ctypes.data)
        self.set("LIVE_WARPS", self.live_warps.ctypes.data)
        self.set("CLUSTER_SIZE", blocks)
        self.set("CLUSTER_WARPS", all_warps)
        self.set("TAGGED", int(facts.clusters.knows))
        self.set("EXPLICIT_CLUSTER", int(geometry.cluster is not None))
        self.set("THREADS", geometry.threads)
        self.set("ENTRY_REGISTERS", facts.entry_registers or 0)
        self.set("STEP_LIMIT", options.step_limit)
        self.set("CLUSTER_LIMIT", options.cluster_limit)
        self.set("SEED", options.seed)
        self.set("CLEAR_REGISTERS", int(facts.clear_registers))
        cluster = geometry.cluster or (1, 1, 1)
        for axis, name in enumerate("XYZ"):
            self.set(f"NTID_{name}", geometry.block[axis])
            self.set(f"NCTAID_{name}", geometry.grid[axis])
            self.set(f"CLUSTER_NCTAID_{name}", cluster[axis])
            self.set(f"NCLUSTERID_{name}", geometry.grid[axis] // cluster[axis])
        for rank in range(blocks):
            self._number_threads(rank, warps, geometry)

    def set(self, slot: str, value: int) -> None:
        """Write a slot of the context."""
        self.context[SLOT[slot]] = value

    def get(self, slot: str) -> int:
        """Read a slot of the context."""
        return int(self.context[SLOT[slot]])

    def _number_threads(self, rank: int, warps: int, geometry: Geometry) -> None:
        first = rank * self.warp_pitch * self.warp_bytes
        states = self.warps[first : first + warps * self.warp_bytes].reshape(warps, self.warp_bytes)
        states[:, at.TID_X : at.TID_X + 3 * 4 * at.LANES] = _thread_numbers(geometry.block)

    def warp_word(self, warp: int, offset: int) -> int:
        """A 32-bit word of a warp's state, by the warp's number in its cluster."""
        start = warp * self.warp_bytes + offset
        return int(self.warps[start : start + 4].view(np.int32)[0])

    def warp_steps(self, warp: int) -> int:
        """Number of instructions that a warp has executed, by the warp's number in its cluster."""
        start = warp * self.warp_bytes + at.SAVED_STEPS
        return int(self.warps[start : start + 8].view(np.int64)[0])


@functools.lru_cache(maxsize=64)
def _thread_numbers(block: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """Array (warps, bytes): x, y and z of every lane's thread, in the layout of a warp's state."""
    assert (at.TID_Y, at.TID_Z) == (at.TID_X + 4 * at.LANES, at.TID_X + 8 * at.LANES)
    x, y, _ = block
    warps = -(-math.prod(block) // at.LANES)
    thread = np.arange(warps * at.LANES, dtype=np.int32)
    numbers = [axis.reshape(warps, at.LANES) for axis in (thread % x, thread // x % y, thread // (x * y))]
    return np.hstack(numbers).view(np.uint8)
