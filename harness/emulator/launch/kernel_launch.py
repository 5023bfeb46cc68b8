"""Runs one kernel launch: sets up contexts, warps and buffers, distributes blocks over CPU cores, collects counts."""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.emulator.abi import layout as at
from harness.emulator.codegen.kernel_facts import KernelFacts, Site
from harness.emulator.launch.block_executions import BlockExecutions, ExecutionCounters
from harness.emulator.launch.block_order import GridRun
from harness.emulator.launch.configuration import MOST_BLOCKS, Geometry, LaunchOptions, with_cluster
from harness.emulator.launch.event_recording import EventBuffer, EventWatcher, event_site
from harness.emulator.launch.launch_control import LaunchQueues
from harness.emulator.launch.memory.device_memory import BufferTables, DeviceBuffer, parameter_block
from harness.emulator.launch.memory.module_memory import ModuleMemory
from harness.emulator.launch.messages.faults import Cluster, Deadlock, Fault, describe, waits_at_mbarrier
from harness.emulator.launch.messages.sanitizer_recorder import LaunchRecorder
from harness.emulator.launch.messages.tensor_faults import waits_for_tensor_memory
from harness.emulator.launch.printing import PrintedText, Printer, assertion_of
from harness.emulator.launch.tracing import BlockListener, TraceBuffer
from harness.emulator.launch.worker import Worker
from harness.emulator.native.kernel_cache import NativeKernel
from harness.emulator.native.object_loading import load_runtime
from harness.execution.schedule.events import EventLaunch, EventListener
from harness.execution.traffic.counts import SharedTraffic, SiteTraffic, TensorTraffic
from harness.model.finding import Finding
from harness.ptx.acceptance import MAX_STATIC_SHARED_BYTES
from harness.support.errors import CooperativeLaunchTooLarge, KernelFault, PlanError
from harness.support.gpu_data_sheets import GPUS, Gpu

GRID_BARRIER, GRID_BARRIER_BYTES = "grid barrier", 8
"""Name in counts, and size, of the memory that `grid.sync()` uses."""


@dataclass(frozen=True)
class LaunchCounts:
    """The results of a launch."""

    sites: tuple[SiteTraffic, ...]
    """Traffic by instruction and buffer."""
    shared: tuple[SharedTraffic, ...]
    """Traffic by instruction; empty unless the kernel was compiled to count it."""
    tensor: tuple[TensorTraffic, ...]
    """Traffic of tensor memory by instruction."""
    tensor_results: Mapping[tuple[str, str, int], int]
    """Elements of D that products in tensor memory computed, by form, source file and line."""
    warp_instructions: int
    lane_instructions: int
    seconds: float
    findings: tuple[Finding, ...] | None = None
    """The sanitizer's findings; None unless the kernel was compiled for it."""
    executed: BlockExecutions | None = None
    """Execution counts; None unless the kernel was compiled to count instructions."""
    notes: tuple[str, ...] = ()
    """Remarks on behaviour of the kernel that is undefined on a GPU but not a fault."""


@dataclass
class PreviousLaunch:
    """What the sanitizer knows of the previous launch of a device, which the next one may overlap."""

    recorder: LaunchRecorder | None = None

    def take(self, overlaps: bool) -> LaunchRecorder | None:
        """The previous launch if the next one `overlaps` it. It is forgotten, to make room for the next one."""
        taken, self.recorder = self.recorder, None
        return taken if overlaps else None


@dataclass(frozen=True)
class LaunchEvents:
    """The listener to the events of a launch."""

    listener: EventListener
    number: int
    """Index of the launch in its plan."""
    resident: int | None = None
    """Resident blocks per multiprocessor, if known."""


def launch(
    kernel: NativeKernel,
    name: str,
    geometry: Geometry,
    parameters: Sequence[bytes],
    buffers: Sequence[DeviceBuffer],
    options: LaunchOptions,
    progress: Callable[[float], None] | None = None,
    listener: BlockListener | None = None,
    module: ModuleMemory | None = None,
    events: LaunchEvents | None = None,
    resident: Callable[[], int] | None = None,
    gpu: Gpu = GPUS["h200"],
    previous: PreviousLaunch | None = None,
) -> LaunchCounts:
    """Run a kernel over its grid. `listener` receives each block's accesses; `events` receives all of its events.

    `module` has the variables that the kernel shares with earlier launches; without it they have their initial values.
    `resident()` is the number of clusters (usually blocks) that the GPU holds at a time; without it, all of them. `gpu`
    limits the shared memory of a block. `previous` holds what the sanitizer knows of the launch before, which may still
    run if `geometry.overlaps_previous`, and then what it knows of this one.

    `parameters` are the values of the entry's parameters, in order. Raises `KernelFault` for errors of the kernel, with
    the report of the first faulting block for any number of cores; `PlanError` for an invalid launch.
    """
    facts = kernel.facts
    most_blocks = max(MOST_BLOCKS, options.step_limit)
    if geometry.sample is None and geometry.blocks > most_blocks:
        raise KernelFault(
            "step limit",
            f"kernel {name}: a grid of {' x '.join(map(str, geometry.grid))} has {geometry.blocks:,} blocks; the "
            f"emulator runs at most {most_blocks:,} in a launch; if it is to run so many, raise --step-limit "
            "to that (a Device: step_limit)",
        )
    geometry = with_cluster(geometry, facts.clusters, name)
    if facts.shared_bytes > MAX_STATIC_SHARED_BYTES:
        raise PlanError(
            f"kernel {name} declares {facts.shared_bytes} bytes of static shared memory; ptxas takes at most "
            f"{MAX_STATIC_SHARED_BYTES}, beyond that it has to be dynamic ('extern __shared__')"
        )
    shared = facts.shared_bytes + geometry.dynamic_shared_bytes
    if shared > (most := gpu.multiprocessor.most_shared_bytes_per_block):
        raise PlanError(
            f"kernel {name} asks for {shared} bytes of shared memory per block; the {gpu.name} has at most {most}"
        )
    if geometry.cooperative:
        _require_room(name, geometry, (resident or _unlimited)())
        buffers = (*buffers, _grid_barrier())
    run_blocks = _run_blocks()
    block_of_parameters = parameter_block(facts, name, parameters)
    tables = BufferTables(facts, buffers, module or ModuleMemory())
    recorder = _recorder(kernel, name, geometry, buffers, tables, previous)
    takes_turns = facts.ordered or recorder is not None
    one_after_another = takes_turns or options.shuffle
    chosen = geometry.chosen_clusters
    clusters = geometry.clusters if chosen is None else len(chosen)
    queues = None
    if facts.cancels:
        queues = LaunchQueues.of(clusters, (resident or _unlimited)(), 0 if geometry.cooperative else options.seed)
    started = clusters if queues is None else queues.started
    places = np.random.default_rng(options.seed).permutation(started) if options.shuffle else None
    count = 1 if one_after_another else max(1, min(options.threads, started))
    stop_at = np.array([geometry.clusters], dtype=np.int64)
    watcher = None if events is None else _watcher(events, kernel, name, geometry, shared, tables)

    text = PrintedText()
    printers: list[Printer] = []

    def new_worker() -> Worker:
        worker = Worker(facts, geometry, options)
        worker.set("ENTRY", kernel.address)
        worker.set("PARAMS", block_of_parameters.ctypes.data)
        worker.set("PARAMS_SIZE", len(block_of_parameters))
        worker.set("STOP_AT", stop_at.ctypes.data)
        worker.set("PLACES", 0 if places is None else places.ctypes.data)
        worker.set("CHOSEN", 0 if chosen is None else chosen.ctypes.data)
        worker.set("LAUNCH_QUEUE", 0 if queues is None else queues.rows.ctypes.data)
        worker.set("GRID_BARRIER", at.buffer_address(len(buffers) - 1) if geometry.cooperative else 0)
        worker.set("LENIENT", int(kernel.instruments.lenient and recorder is None))
        worker.set("LENIENT_BARRIERS", int(kernel.instruments.lenient))
        worker.set("SANITIZER", 0 if recorder is None else recorder.memory.new_state())
        tables.attach(worker)
        if facts.prints:
            printers.append(Printer(worker, text))
        if listener is not None:
            worker.trace = TraceBuffer(worker.context, facts.sites, listener.first_lines)
        if watcher is not None:
            worker.events = EventBuffer(worker, facts.sites, watcher, geometry.blocks_per_cluster)
        if kernel.instruments.instructions:
            worker.executions = ExecutionCounters(worker.context, len(facts.blocks), clusters, started // 2)
        return worker

    lengths = None if recorder is None else random.Random(options.seed)
    run = GridRun(geometry, chosen, stop_at, run_blocks, new_worker, listener, progress, lengths, queues)
    begun = time.perf_counter()
    faults = run.run(count, (resident or _unlimited) if takes_turns else None)
    workers = run.workers
    seconds = time.perf_counter() - begun
    if events is not None and watcher is not None:
        watcher.finish(failed=bool(faults))
    if faults:
        _, worker = min(faults, key=lambda pair: pair[0])
        deadlock = _deadlock_of(run, facts, geometry)
        fault = describe(_fault_of(worker, facts, name, geometry, buffers, deadlock))
        fault.findings = () if recorder is None else recorder.findings()
        text.flush()
        raise fault
    run.deliver_cancelled()
    text.flush()
    if previous is not None:
        previous.recorder = recorder
    counters = tables.block_counters()
    return LaunchCounts(
        tables.traffic(),
        counters.shared_traffic(),
        counters.tensor_traffic(),
        counters.tensor_results(),
        sum(w.get("WARP_INSTRUCTIONS") for w in workers),
        sum(w.get("LANE_INSTRUCTIONS") for w in workers),
        seconds,
        None if recorder is None else (*recorder.findings(), *_barrier_findings(workers, facts, name)),
        ExecutionCounters.added(w.executions for w in workers if w.executions is not None)
        if kernel.instruments.instructions
        else None,
        _notes(workers, facts, name),
    )


def _require_room(name: str, geometry: Geometry, most_clusters: int) -> None:
    """Raise `CooperativeLaunchTooLarge` if the blocks of a cooperative launch are not resident together."""
    if geometry.clusters > most_clusters:
        raise CooperativeLaunchTooLarge(
            f"kernel {name}: a cooperative launch of {geometry.blocks:,} blocks, of which the GPU holds "
            f"{most_clusters * geometry.blocks_per_cluster:,} at a time (CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE)"
        )


def _grid_barrier() -> DeviceBuffer:
    """The driver's memory for `grid.sync()`: its size, and the arrivals that all blocks count in."""
    return DeviceBuffer(GRID_BARRIER, np.zeros(GRID_BARRIER_BYTES, np.uint8), np.zeros(GRID_BARRIER_BYTES, np.uint8))


def _unlimited() -> int:
    return 1 << 62


def _watcher(
    events: LaunchEvents,
    kernel: NativeKernel,
    name: str,
    geometry: Geometry,
    shared_bytes: int,
    tables: BufferTables,
) -> EventWatcher:
    launched = EventLaunch(
        events.number,
        name,
        geometry.grid,
        geometry.block,
        geometry.cluster,
        tables.names,
        tuple(event_site(site) for site in kernel.facts.sites),
        shared_bytes,
        events.resident,
    )
    events.listener.begin(launched)
    return EventWatcher(events.listener, tables.sizes_bytes)


_NOTES = {
    "ABSENT_LANES": "reads lanes that have returned, are on another path or are none of the block's; that is "
    "undefined, and gives 0 here as on an H100",
    "LENIENT_LOAD": "reads beyond shared memory; that is undefined. An H100 accepts it, and here it gives NaN",
    "LENIENT_ARRIVAL": "arrives at an mbarrier of a block that has ended; that is undefined. An H100 accepts it",
}
"""What a note says, by the slot with 1 + the first instruction in text order."""
_BARRIERS = ("bar", "barrier")
_BARRIER_NOTE = (
    "names lanes that are on another path or have returned; that is undefined, and it does not wait for them here"
)


def _notes(workers: Sequence[Worker], facts: KernelFacts, name: str) -> tuple[str, ...]:
    """For each kind of note, a sentence about the first such instruction in text order, if there is one."""
    sites = {slot: _first_site(workers, facts, slot) for slot in _NOTES}
    return tuple(
        _note(name, site, _BARRIER_NOTE if site.opcode in _BARRIERS else _NOTES[slot])
        for slot, site in sites.items()
        if site is not None
    )


def _first_site(workers: Sequence[Worker], facts: KernelFacts, slot: str) -> Site | None:
    numbers = [number for worker in workers if (number := worker.get(slot))]
    return facts.sites[min(numbers) - 1] if numbers else None


def _note(name: str, site: Site, words: str) -> str:
    return f"kernel {name}, {site.where()}: '{site.form}' {words}"


def _barrier_findings(workers: Sequence[Worker], facts: KernelFacts, name: str) -> tuple[Finding, ...]:
    """A finding for a barrier of a warp that did not wait for lanes that it names."""
    site = _first_site(workers, facts, "ABSENT_LANES")
    if site is None or site.opcode not in _BARRIERS:
        return ()
    return (Finding(kind="divergent barrier", message=_note(name, site, _BARRIER_NOTE), kernel=name),)


def _recorder(
    kernel: NativeKernel,
    name: str,
    geometry: Geometry,
    buffers: Sequence[DeviceBuffer],
    tables: BufferTables,
    previous: PreviousLaunch | None,
) -> LaunchRecorder | None:
    if not kernel.instruments.sanitizer:
        return None
    maps = [b.written if b.written is not None else np.zeros(b.data.nbytes, np.uint8) for b in buffers]
    named = [(b.name, b.data) for b in buffers]
    overlapped = None if previous is None else previous.take(geometry.overlaps_previous)
    return LaunchRecorder(kernel.facts, name, geometry, named, maps, tables.variables(buffers), overlapped)


def _run_blocks() -> Callable[[int, int, int], int]:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(load_runtime())


def _fault_of(
    worker: Worker,
    facts: KernelFacts,
    name: str,
    geometry: Geometry,
    buffers: Sequence[DeviceBuffer],
    deadlock: Deadlock | None,
) -> Fault:
    is_deadlock = worker.get("FAULT_KIND") == at.FAULT["barrier deadlock"]
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
        waiting=tuple(
            (rank, warp, _wait_of(worker, facts, rank * worker.warp_pitch + warp))
            for rank in range(geometry.blocks_per_cluster)
            for warp in range(worker.get("WARP_COUNT"))
            if is_deadlock
        ),
        grid=geometry.grid,
        cluster=Cluster(
            tuple(
                at.coordinates(geometry.block_of(geometry.cluster_of(worker.get("FAULT_BLOCK")), rank), geometry.grid)
                for rank in range(geometry.blocks_per_cluster)
            ),
            facts.clusters.knows,
        ),
        threads=geometry.block,
        buffers=tuple((b.name, b.data.nbytes) for b in buffers),
        variables=tuple((v.name, v.size_bytes) for v in facts.variables),
        local_bytes=facts.local_bytes,
        deadlock=deadlock,
        lacks_grid_barrier=facts.grid_barrier and not geometry.cooperative,
        assertion=assertion_of(worker) if worker.get("FAULT_KIND") == at.FAULT["assertion"] else "",
        sites=facts.sites,
        left_at=_left_at(worker, facts, worker.get("FAULT_ADDRESS")),
    )


def _deadlock_of(run: GridRun, facts: KernelFacts, geometry: Geometry) -> Deadlock | None:
    """Where each of the clusters that wait for each other spins."""
    if not run.deadlocked:
        return None
    places: dict[str, list[int]] = {}
    for worker in run.deadlocked:
        cluster = geometry.cluster_of(worker.get("BLOCK"))
        for rank in range(geometry.blocks_per_cluster):
            block = geometry.block_of(cluster, rank)
            for warp in range(rank * worker.warp_pitch, rank * worker.warp_pitch + geometry.warps):
                place = _spins_at(worker, facts, warp)
                if place is not None and block not in places.setdefault(place, []):
                    places[place].append(block)
    return Deadlock(len(run.deadlocked), run.not_started, {place: sorted(blocks) for place, blocks in places.items()})


def _spins_at(worker: Worker, facts: KernelFacts, warp: int) -> str | None:
    """Where a warp, identified by its number in its cluster, runs; None if it waits at a barrier or has exited."""
    site = facts.blocks[_pc(worker, warp)] if worker.warp_word(warp, at.STATUS) == at.READY else None
    return None if site is None else site.where()


def _pc(worker: Worker, warp: int) -> int:
    """The basic block at which the lowest lane of a warp would continue."""
    return min(worker.warp_word(warp, at.PCS + 4 * lane) for lane in range(at.LANES))


def _left_at(worker: Worker, facts: KernelFacts, address: int) -> Site | None:
    """The instruction at which the block with the rank of this address last returned, if known."""
    rank = (address & 0xFFFFFFFF) >> at.RANK_SHIFT
    if worker.get("FAULT_KIND") != at.FAULT["ended block"] or rank >= worker.get("CLUSTER_SIZE"):
        return None
    first = rank * worker.warp_pitch
    steps = [(worker.warp_steps(first + warp), first + warp) for warp in range(worker.get("WARP_COUNT"))]
    left = worker.warp_word(max(steps)[1], at.LEFT_AT)
    return facts.sites[left - 1] if left else None


def _wait_of(worker: Worker, facts: KernelFacts, warp: int) -> str:
    """Describe where a warp that cannot continue waits; `warp` is its number in the cluster."""
    status = worker.warp_word(warp, at.STATUS)
    if status == at.EXITED:
        return "have exited"
    if status == at.READY:
        place, parity = worker.warp_word(warp, at.WAIT_PLACE), worker.warp_word(warp, at.WAIT_PARITY)
        word = int(worker.shared[place : place + 8].view(np.int64)[0])
        offset = place % worker.shared_pitch
        expects = None if worker.async_proxy is None else worker.async_proxy.expected_by(place)
        expected_by = None if expects is None else facts.sites[expects]
        return waits_at_mbarrier(facts.sites[worker.warp_word(warp, at.WAIT_SITE)], offset, parity, word, expected_by)
    if status == at.AT_CLUSTER:
        return f"wait at the barrier of the cluster, {facts.sites[worker.warp_word(warp, at.CLUSTER_SITE)].where()}"
    site = facts.sites[worker.warp_word(warp, at.BARRIER_SITE)]
    what = "wait at a barrier" if status == at.AT_BARRIER else "wait for the other warps of their warpgroup"
    if site.opcode == "tcgen05.alloc":
        what = waits_for_tensor_memory(worker.warp_word(warp, at.GROUPS_LEFT))
    return f"{what}, {site.where()}"


def _site_of(worker: Worker, facts: KernelFacts) -> Site | None:
    """The instruction at fault.

    For a warp stopped in a loop, the instruction at which its lowest lane would continue.
    """
    number = worker.get("FAULT_SITE")
    if number >= 0:
        return facts.sites[number]
    if worker.get("FAULT_KIND") != at.FAULT["step limit"]:
        return None
    return facts.blocks[_pc(worker, worker.get("FIRST_WARP") + worker.get("FAULT_WARP"))]
