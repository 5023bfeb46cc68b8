"""One kernel launch: lay out contexts, warps and buffers, spread the blocks over the CPU's cores, collect counts."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.emulator.codegen.facts import KernelFacts, Site
from harness.emulator.machine import layout as at
from harness.emulator.machine.copy_queues import CopyQueues
from harness.emulator.machine.faults import Fault, describe
from harness.emulator.machine.kernels import NativeKernel
from harness.emulator.machine.native import load_runtime
from harness.emulator.machine.tracing import BlockListener, TraceBuffer
from harness.emulator.sanitizer.recorder import LaunchRecorder
from harness.model.finding import Finding
from harness.support.errors import PlanError

_CACHE_LINE_BYTES = 64
_SLACK_BYTES = 64
MAX_SHARED_BYTES = 227 * 1024
"""What a block may have on sm_90, static and dynamic; more cannot be launched."""
MAX_STATIC_SHARED_BYTES = 48 * 1024


@dataclass(frozen=True)
class DeviceBuffer:
    """A named array that kernels can reach."""

    name: str
    data: npt.NDArray[np.uint8]
    """Its bytes, C-contiguous, one-dimensional."""
    unwritten: npt.NDArray[np.uint8] | None = None
    """For the sanitizer: 0xFF for each byte that nobody has written yet, else 0."""


@dataclass(frozen=True)
class SiteCount:
    """Counters of one memory instruction and one buffer."""

    site: int
    buffer: str
    requests: int
    requested_bytes: int
    sectors: int
    ideal_sectors: int
    """The fewest sectors that the distinct bytes of each request fit into, added up."""


@dataclass(frozen=True)
class SharedCount:
    """Counters of one instruction that loads from or stores to shared memory."""

    site: int
    requests: int
    requested_bytes: int
    wavefronts: int
    ideal_wavefronts: int
    """Without any bank conflict."""


@dataclass(frozen=True)
class LaunchCounts:
    """What a launch did."""

    sites: tuple[SiteCount, ...]
    shared: tuple[SharedCount, ...]
    """Empty unless the kernel was compiled to count them."""
    warp_instructions: int
    lane_instructions: int
    seconds: float
    findings: tuple[Finding, ...] | None = None
    """None unless the kernel was compiled for the sanitizer."""


@dataclass(frozen=True)
class Geometry:
    """Grid and block, padded to three dimensions, and dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int

    @property
    def blocks(self) -> int:
        """Thread blocks in the grid."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Threads per block."""
        return math.prod(self.block)


def aligned_zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes that start on a cache line, with slack behind."""
    raw = np.zeros(size_bytes + _CACHE_LINE_BYTES + _SLACK_BYTES, dtype=np.uint8)
    shift = -raw.ctypes.data % _CACHE_LINE_BYTES
    return raw[shift : shift + size_bytes + _SLACK_BYTES]


class _Worker:
    """One core's context, with the memory of one thread block at a time."""

    def __init__(self, facts: KernelFacts, geometry: Geometry, options: LaunchOptions) -> None:
        warps = -(-geometry.threads // at.LANES)
        self.warp_bytes = -(-(at.REGISTERS + facts.register_bytes) // 64) * 64
        shared = facts.shared_bytes + geometry.dynamic_shared_bytes
        self.context = np.zeros(at.CONTEXT_SLOTS, dtype=np.int64)
        self.shared = aligned_zeros(shared)
        self.warps = aligned_zeros(self.warp_bytes * warps)
        self.locals = aligned_zeros(facts.local_bytes * at.LANES * warps)
        self.order = np.zeros(warps, dtype=np.int32)
        self.barriers = np.zeros(at.BARRIER_SLOTS, dtype=np.int64)
        self.copies = CopyQueues(self.context, warps, shared) if facts.copies else None
        self.trace: TraceBuffer | None = None
        self.set("SHARED_BASE", self.shared.ctypes.data)
        self.set("SHARED_SIZE", shared)
        self.set("WARPS", self.warps.ctypes.data)
        self.set("WARP_COUNT", warps)
        self.set("WARP_BYTES", self.warp_bytes)
        self.set("LOCALS", self.locals.ctypes.data)
        self.set("LOCAL_SIZE", facts.local_bytes)
        self.set("ORDER", self.order.ctypes.data)
        self.set("BARRIERS", self.barriers.ctypes.data)
        self.set("THREADS", geometry.threads)
        self.set("STEP_LIMIT", options.step_limit)
        self.set("SEED", options.seed)
        self.set("CLEAR_REGISTERS", int(facts.clear_registers))
        for axis, name in enumerate("XYZ"):
            self.set(f"NTID_{name}", geometry.block[axis])
            self.set(f"NCTAID_{name}", geometry.grid[axis])
        self._number_threads(warps, geometry)

    def set(self, slot: str, value: int) -> None:
        self.context[at.SLOT[slot]] = value

    def get(self, slot: str) -> int:
        return int(self.context[at.SLOT[slot]])

    def _number_threads(self, warps: int, geometry: Geometry) -> None:
        states = self.warps[: warps * self.warp_bytes].reshape(warps, self.warp_bytes)
        states[:, at.TID_X : at.TID_X + 3 * 4 * at.LANES] = _thread_numbers(geometry.block)

    def warp_word(self, warp: int, offset: int) -> int:
        """A 32-bit word of a warp's state."""
        start = warp * self.warp_bytes + offset
        return int(self.warps[start : start + 4].view(np.int32)[0])


@functools.lru_cache(maxsize=64)
def _thread_numbers(block: tuple[int, int, int]) -> npt.NDArray[np.uint8]:
    """(warps, bytes): x, y and z of every lane's thread, as they lie one behind the other in the state of a warp."""
    assert (at.TID_Y, at.TID_Z) == (at.TID_X + 4 * at.LANES, at.TID_X + 8 * at.LANES)
    x, y, _ = block
    warps = -(-math.prod(block) // at.LANES)
    thread = np.arange(warps * at.LANES, dtype=np.int32)
    numbers = [axis.reshape(warps, at.LANES) for axis in (thread % x, thread // x % y, thread // (x * y))]
    return np.hstack(numbers).view(np.uint8)


@dataclass(frozen=True)
class LaunchOptions:
    """How to run, as opposed to what."""

    step_limit: int
    """Instructions that one warp may execute."""
    threads: int
    """CPU cores to use."""
    seed: int
    """0: warps take turns in order; other values permute them."""
    shuffle: bool = False
    """The seed permutes the blocks, too, and warps have turns of drawn lengths. Blocks then run on one core."""


def launch(
    kernel: NativeKernel,
    name: str,
    geometry: Geometry,
    parameters: Sequence[bytes],
    buffers: Sequence[DeviceBuffer],
    options: LaunchOptions,
    progress: Callable[[float], None] | None = None,
    listener: BlockListener | None = None,
) -> LaunchCounts:
    """Run a kernel over its grid. `listener` is told what each block read and wrote.

    `parameters` are the values of the entry's parameters, in order. Raises `KernelFault` for what the kernel did
    wrong, with the first faulting block's report, whatever the number of cores; `PlanError` for an impossible launch.
    """
    facts = kernel.facts
    if facts.shared_bytes > MAX_STATIC_SHARED_BYTES:
        raise PlanError(
            f"kernel {name} declares {facts.shared_bytes} bytes of static shared memory; ptxas takes at most "
            f"{MAX_STATIC_SHARED_BYTES}, beyond that it has to be dynamic ('extern __shared__')"
        )
    shared = facts.shared_bytes + geometry.dynamic_shared_bytes
    if shared > MAX_SHARED_BYTES:
        raise PlanError(f"kernel {name} asks for {shared} bytes of shared memory per block; {MAX_SHARED_BYTES} is all")
    run_blocks = _run_blocks()
    block_of_parameters = _parameter_block(facts, name, parameters)
    tables = _Tables(facts, buffers)
    recorder = _recorder(kernel, name, geometry, buffers)
    one_after_another = facts.ordered or recorder is not None or options.shuffle
    places = np.random.default_rng(options.seed).permutation(geometry.blocks) if options.shuffle else None
    count = 1 if one_after_another else max(1, min(options.threads, geometry.blocks))
    stop_at = np.array([geometry.blocks], dtype=np.int64)
    workers = []
    for _ in range(count):
        worker = _Worker(facts, geometry, options)
        worker.set("ENTRY", kernel.address)
        worker.set("PARAMS", block_of_parameters.ctypes.data)
        worker.set("PARAMS_SIZE", len(block_of_parameters) - _SLACK_BYTES)
        worker.set("STOP_AT", stop_at.ctypes.data)
        worker.set("PLACES", 0 if places is None else places.ctypes.data)
        worker.set("SANITIZER", 0 if recorder is None else recorder.address)
        tables.attach(worker)
        if listener is not None:
            worker.trace = TraceBuffer(worker.context, facts.sites, listener.first_lines)
        workers.append(worker)
    started = time.perf_counter()
    faults = _run_all(workers, geometry.blocks, stop_at, run_blocks, progress, listener)
    seconds = time.perf_counter() - started
    if faults:
        _, worker = min(faults, key=lambda pair: pair[0])
        fault = describe(_fault_of(worker, facts, name, geometry, buffers))
        fault.findings = () if recorder is None else recorder.findings()
        raise fault
    return LaunchCounts(
        tables.totals(),
        tables.shared_totals(),
        sum(w.get("WARP_INSTRUCTIONS") for w in workers),
        sum(w.get("LANE_INSTRUCTIONS") for w in workers),
        seconds,
        None if recorder is None else recorder.findings(),
    )


def _recorder(
    kernel: NativeKernel, name: str, geometry: Geometry, buffers: Sequence[DeviceBuffer]
) -> LaunchRecorder | None:
    if not kernel.instruments.sanitizer:
        return None
    maps = [b.unwritten if b.unwritten is not None else np.zeros(b.data.nbytes, np.uint8) for b in buffers]
    shared = kernel.facts.shared_bytes + geometry.dynamic_shared_bytes
    sizes = [(b.name, b.data.nbytes) for b in buffers]
    return LaunchRecorder(kernel.facts, name, geometry.grid, geometry.block, shared, sizes, maps)


class _Tables:
    """Addresses and sizes of buffers and module variables, and each worker's counters."""

    def __init__(self, facts: KernelFacts, buffers: Sequence[DeviceBuffer]) -> None:
        self._names = [b.name for b in buffers] + ["local"]
        self._sites = len(facts.sites)
        self._buffers = np.array([[b.data.ctypes.data, b.data.nbytes] for b in buffers], dtype=np.int64).reshape(-1, 2)
        # One piece of memory for all: Numba's modules have dozens of variables of a few bytes.
        sizes = [-(-(v.size_bytes + _SLACK_BYTES) // _CACHE_LINE_BYTES) * _CACHE_LINE_BYTES for v in facts.variables]
        starts = [0, *itertools.accumulate(sizes)]
        self._storage = aligned_zeros(starts[-1])
        for start, variable in zip(starts, facts.variables):
            if variable.initial is not None:
                initial = np.frombuffer(variable.initial, dtype=np.uint8)
                self._storage[start : start + len(initial)] = initial
        first = self._storage.ctypes.data
        rows = [[first + start, v.size_bytes] for start, v in zip(starts, facts.variables)]
        self._variables = np.array(rows, dtype=np.int64).reshape(-1, 2)
        self._counters: list[npt.NDArray[np.int64]] = []
        self._shared: list[npt.NDArray[np.int64]] = []

    def attach(self, worker: _Worker) -> None:
        counters = np.zeros((self._sites, len(self._names), at.COUNTERS_PER_ENTRY), dtype=np.int64)
        shared = np.zeros((self._sites, at.SHARED_COUNTERS_PER_SITE), dtype=np.int64)
        self._counters.append(counters)
        self._shared.append(shared)
        worker.set("COUNTERS", counters.ctypes.data)
        worker.set("SHARED_COUNTERS", shared.ctypes.data)
        worker.set("BUFFERS", self._buffers.ctypes.data)
        worker.set("BUFFER_COUNT", len(self._names) - 1)
        worker.set("VARIABLES", self._variables.ctypes.data)
        worker.set("VARIABLE_COUNT", len(self._variables))

    def totals(self) -> tuple[SiteCount, ...]:
        total = np.sum(self._counters, axis=0)
        return tuple(
            SiteCount(int(site), self._names[buffer], *(int(n) for n in total[site, buffer]))
            for site, buffer in np.argwhere(total[:, :, 0])
        )

    def shared_totals(self) -> tuple[SharedCount, ...]:
        total = np.sum(self._shared, axis=0)
        return tuple(SharedCount(int(site), *(int(n) for n in total[site])) for site in np.flatnonzero(total[:, 0]))


def _parameter_block(facts: KernelFacts, name: str, values: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    if len(values) != len(facts.parameters):
        raise PlanError(f"kernel {name} takes {len(facts.parameters)} arguments; the plan gives {len(values)}")
    end = max((p.offset + p.size_bytes for p in facts.parameters), default=0)
    packed = bytearray(end)
    for parameter, value in zip(facts.parameters, values):
        if len(value) != parameter.size_bytes:
            raise PlanError(
                f"kernel {name}: argument {parameter.name} takes {parameter.size_bytes} bytes, not {len(value)}"
            )
        packed[parameter.offset : parameter.offset + len(value)] = value
    block = aligned_zeros(end)
    block[:end] = np.frombuffer(packed, dtype=np.uint8)
    return block


def _run_blocks() -> Callable[[int, int, int], int]:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(load_runtime())


def _run_all(
    workers: list[_Worker],
    blocks: int,
    stop_at: npt.NDArray[np.int64],
    run_blocks: Callable[[int, int, int], int],
    progress: Callable[[float], None] | None,
    listener: BlockListener | None,
) -> list[tuple[int, _Worker]]:
    """Hand out blocks in order, in chunks; the faults that were met, as (block, worker)."""
    chunk = max(1, min(64, blocks // (8 * len(workers))))
    lock = threading.Lock()
    faults: list[tuple[int, _Worker]] = []
    state = {"next": 0, "done": 0}

    def run(worker: _Worker, first: int, last: int) -> int:
        if listener is None or worker.trace is None:
            return run_blocks(worker.context.ctypes.data, first, last)
        for block in range(first, last):
            if run_blocks(worker.context.ctypes.data, block, block + 1):
                return 1
            listener.deliver(block, worker.trace.take())
        return 0

    def work(worker: _Worker) -> None:
        while True:
            with lock:
                first = state["next"]
                state["next"] = first + chunk
            if first >= blocks or first > stop_at[0]:
                return
            failed = run(worker, first, min(first + chunk, blocks))
            with lock:
                state["done"] += chunk
                if failed:
                    block = worker.get("FAULT_BLOCK")
                    faults.append((block, worker))
                    stop_at[0] = min(int(stop_at[0]), block)
                    return

    if len(workers) == 1 and progress is None and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Nobody to listen to meanwhile: a thread of its own would cost more than a small launch.
        work(workers[0])
        return faults
    with ThreadPoolExecutor(len(workers)) as pool:
        pending = {pool.submit(work, worker) for worker in workers}
        try:
            while pending:
                finished, pending = wait(pending, timeout=0.1)
                for future in finished:
                    future.result()
                if progress is not None:
                    progress(min(1.0, state["done"] / blocks))
        except BaseException:
            # Ctrl-C: no new blocks, and running warps stop at their next loop.
            state["next"] = blocks
            for worker in workers:
                worker.set("STEP_LIMIT", 0)
            raise
    return faults


def _fault_of(
    worker: _Worker, facts: KernelFacts, name: str, geometry: Geometry, buffers: Sequence[DeviceBuffer]
) -> Fault:
    waiting = []
    for warp in range(worker.get("WARP_COUNT")):
        status = worker.warp_word(warp, at.STATUS)
        site = facts.sites[worker.warp_word(warp, at.BARRIER_SITE)] if status == at.AT_BARRIER else None
        waiting.append((warp, site))
    return Fault(
        kernel=name,
        kind=at.FAULTS[worker.get("FAULT_KIND")],
        site=_site_of(worker, facts),
        block=worker.get("FAULT_BLOCK"),
        warp=worker.get("FAULT_WARP"),
        lane=worker.get("FAULT_LANE"),
        lanes=worker.get("FAULT_MASK"),
        address=worker.get("FAULT_ADDRESS"),
        size_bytes=worker.get("FAULT_SIZE"),
        step_limit=worker.get("STEP_LIMIT"),
        shared_bytes=worker.get("SHARED_SIZE"),
        waiting=tuple(waiting),
        grid=geometry.grid,
        threads=geometry.block,
        buffers=tuple((b.name, b.data.nbytes) for b in buffers),
        variables=tuple((v.name, v.size_bytes) for v in facts.variables),
        local_bytes=facts.local_bytes,
    )


def _site_of(worker: _Worker, facts: KernelFacts) -> Site | None:
    """The instruction at fault; for a warp that was stopped in a loop, where its lowest lane would go on."""
    number = worker.get("FAULT_SITE")
    if number >= 0:
        return facts.sites[number]
    if worker.get("FAULT_KIND") != at.FAULT["step limit"]:
        return None
    pc = min(worker.warp_word(worker.get("FAULT_WARP"), at.PCS + 4 * lane) for lane in range(at.LANES))
    return facts.blocks[pc]


def default_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
