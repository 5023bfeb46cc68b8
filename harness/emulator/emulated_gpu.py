"""Launches compiled kernels on the emulated GPU: native code, geometry, caches, counts. It knows no plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness.compilers import CompiledKernel
from harness.compilers.ptxas import Resources, resources
from harness.emulator.abi.cache_layout import LAUNCH_BYTES
from harness.emulator.instruments import PLAIN, Instruments
from harness.emulator.launch.cache_hierarchy import CacheCount, LaunchCaches, MemoryHierarchy
from harness.emulator.launch.configuration import (
    Geometry,
    LaunchOptions,
    require_registers,
    residency_of,
    resident_clusters,
)
from harness.emulator.launch.hardware_tensor_maps import translated
from harness.emulator.launch.kernel_launch import LaunchEvents, PreviousLaunch, launch
from harness.emulator.launch.memory.device_memory import DeviceBuffer
from harness.emulator.launch.memory.module_memory import ModuleMemory
from harness.emulator.native.compile_worker import THIS_PROCESS
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.tier import Tier
from harness.execution.protocol import LaunchReport
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.execution.schedule.events import EventListener
from harness.execution.traffic.counts import CacheReport, CacheTraffic, by_place
from harness.model.finding import Finding
from harness.ptx.targets import may_overlap_launches
from harness.support.gpu_data_sheets import GPUS, Gpu
from harness.support.memory_units import SECTOR_BYTES

CODE = "code"
"""The buffer name under which instruction fetches are counted."""


@dataclass(frozen=True)
class RunEvents:
    """The listener to the events of a run."""

    listener: EventListener
    gpu: Gpu | None
    """The GPU that determines how many blocks are resident on a multiprocessor; None if that is not needed."""
    number: int = 0
    """Index of the launch in its plan."""


class EmulatedGpu:
    """Launches one kernel at a time, with the settings and instruments of all of its launches.

    `gpu` is the GPU whose size limits how many blocks are resident. Of `settings` it takes the caches. `progress` is
    called with the completed fraction of a launch. `instruments` record more than bounds and sectors, which takes
    longer, as caches do.
    """

    def __init__(
        self,
        settings: RunSettings = DEFAULT_SETTINGS,
        *,
        progress: Callable[[float], None] | None = None,
        instruments: Instruments = PLAIN,
        gpu: Gpu = GPUS["h200"],
    ) -> None:
        self._gpu = gpu
        self._caches = settings.caches
        self._progress = progress
        self.instruments = instruments

    def launch(
        self,
        compiled: CompiledKernel,
        parameters: Sequence[bytes],
        geometry: Geometry,
        memory: Sequence[DeviceBuffer],
        module: ModuleMemory,
        options: LaunchOptions,
        *,
        name: str,
        tier: Tier = Tier.OPTIMIZED,
        hierarchy: MemoryHierarchy | None = None,
        events: RunEvents | None = None,
        previous: PreviousLaunch | None = None,
    ) -> tuple[LaunchReport, tuple[Finding, ...] | None]:
        """Run a kernel over its grid. Returns the counts, and the sanitizer's findings if it is an instrument.

        `parameters` has the bytes of each parameter. The kernel reads and writes `memory`, whose buffer number i is at
        the address `abi.layout.buffer_address(i)`, and the variables in `module`. `name` is that of the kernel in
        messages. `previous` is passed from launch to launch of a device, so that the sanitizer compares a launch with
        those which it may overlap.

        Raises `KernelFault`, `PlanError` for an invalid launch, `CompileError` or `UnsupportedInstruction`.
        """
        if geometry.overlaps_previous and not may_overlap_launches(compiled.arch):
            geometry = replace(geometry, overlaps_previous=False)
        kernel = native_kernel(compiled.ptx, compiled.entry, THIS_PROCESS, self.instruments, tier)
        require_registers(name, compiled, geometry, self._gpu, kernel.facts.most_threads)
        needs_residency = events is not None and events.gpu is not None
        used = None
        if self._caches is not None or self.instruments.instructions or needs_residency:
            used = resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)
        caches = self._behind_sectors(hierarchy, name, geometry, used)
        counts = launch(
            kernel,
            name,
            geometry,
            translated(compiled.parameters, parameters),
            memory,
            options,
            self._progress,
            caches,
            module,
            None if events is None else _launch_events(events, name, geometry, used),
            lambda: resident_clusters(compiled, geometry, self._gpu),
            self._gpu,
            previous,
        )
        modelled = None
        if hierarchy is not None and caches is not None and used is not None:
            modelled = _cache_report(caches.finish(), used, hierarchy.dirty_bytes)
        instructions = None
        if counts.executed is not None:
            # Here, because it loads the parser of PTX, which a launch of a compiled kernel does without.
            from harness.emulator.launch.instruction_report import instruction_report

            are_connected = kernel.facts.ordered or kernel.facts.cancels
            instructions = instruction_report(
                compiled.ptx, compiled.entry, counts.executed, are_connected, counts.tensor_results
            )
        report = LaunchReport(
            name,
            by_place(counts.sites),
            counts.warp_instructions,
            counts.lane_instructions,
            by_place(counts.shared) if self.instruments.bank_conflicts else None,
            by_place(counts.tensor),
            counts.seconds,
            compiled.ptx,
            modelled,
            instructions,
            used,
            counts.notes,
        )
        return report, counts.findings

    def _behind_sectors(
        self, hierarchy: MemoryHierarchy | None, name: str, geometry: Geometry, used: Resources | None
    ) -> LaunchCaches | None:
        """The caches of a launch that begins now; None without a cache model."""
        if hierarchy is None or self._caches is None or used is None:
            return None
        if self._caches.flushed:
            hierarchy.flush()
        chosen = geometry.chosen_clusters
        blocks = geometry.blocks if chosen is None else len(chosen) * geometry.blocks_per_cluster
        return hierarchy.launch(blocks, residency_of(self._caches.gpu, name, geometry, used))


def _launch_events(events: RunEvents, name: str, geometry: Geometry, used: Resources | None) -> LaunchEvents:
    """The listener for one launch, with the number of its blocks that a multiprocessor holds."""
    resident = None
    if events.gpu is not None and used is not None:
        resident = residency_of(events.gpu, name, geometry, used).blocks
    return LaunchEvents(events.listener, events.number, resident)


def _cache_report(counts: tuple[CacheCount, ...], used: Resources, dirty_bytes: int) -> CacheReport:
    """Convert to bytes, and add the launch's own fetches, which are assumed to miss L2."""
    code = CacheTraffic(CODE, 0, 0, LAUNCH_BYTES + (used.code_bytes or 0), 0)
    buffers = (
        CacheTraffic(c.buffer, *(SECTOR_BYTES * n for n in (c.l2_read, c.l2_write, c.dram_read, c.dram_write)))
        for c in counts
        if c.l2_read or c.l2_write or c.dram_read or c.dram_write
    )
    return CacheReport((*buffers, code), dirty_bytes)
