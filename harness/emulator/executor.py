"""Runs a plan on the emulated GPU: every launch is compiled to PTX, translated to native code, checked and counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.compilers import DevicePointer, compile_kernel
from harness.emulator.abi import layout as at
from harness.emulator.abi.async_proxy_layout import MAP_BYTES
from harness.emulator.emulated_gpu import EmulatedGpu, RunEvents
from harness.emulator.instruments import PLAIN, Instruments
from harness.emulator.launch.cache_hierarchy import CacheSizes, MemoryHierarchy
from harness.emulator.launch.configuration import MOST_STEPS, Geometry, LaunchOptions
from harness.emulator.launch.kernel_launch import PreviousLaunch
from harness.emulator.launch.memory.module_memory import LoadedModules, ModulesOfPlans
from harness.emulator.launch.memory.peer_copies import CopiesOfRun
from harness.emulator.launch.memory.run_memory import RunMemory, require_emulated
from harness.emulator.launch.tensor_maps import MAPS, addressed, encode
from harness.emulator.native.compile_worker import WorkerPool
from harness.emulator.native.kernel_cache import native_kernel
from harness.emulator.native.object_loading import load_part
from harness.emulator.native.tier import Tier
from harness.execution.judging.accuracy import all_zero, untouched
from harness.execution.judging.kept_inputs import require_kept, require_unused_kept
from harness.execution.protocol import Device, Execution, LaunchReport
from harness.execution.run_settings import DEFAULT_SETTINGS, RunSettings
from harness.execution.schedule.events import EventListener
from harness.execution.traffic.counts import WRITES
from harness.model.finding import Finding
from harness.model.placed_tensors import placed_inputs, view
from harness.model.plan import Buffer, Launch, Plan, Reshaped, map_leaves
from harness.model.problem import IN_OUT, INPUT, BaseProblem
from harness.model.tensor_map import TensorMap
from harness.support.cores import usable_cores
from harness.support.errors import KernelFault, SandboxError
from harness.support.gpu_data_sheets import Gpu, usual_gpu

BRIEF_FLOPS = 2e10
"""Kernels of problems up to this many FLOP run for less time than LLVM would take to optimize them, about five
seconds."""

Pointers = dict[str | TensorMap, DevicePointer]
"""Device address of each buffer, and of each tensor map whose address is an argument."""


class RuntimeAhead:
    """Loads the runtime, which all kernels need, once, in a thread next to the compilation of the first kernel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = False

    def start(self, workers: WorkerPool) -> None:
        """Start loading, with a worker if the runtime is not in the disk cache.

        Errors are ignored here, because the first kernel raises them again.
        """
        with self._lock:
            if self._started:
                return
            self._started = True
        threading.Thread(target=_load, args=(workers,), daemon=True).start()


def _load(workers: WorkerPool) -> None:
    with contextlib.suppress(SandboxError), workers.borrow() as worker:
        load_part("core", worker.build_part)


class EmulatorExecutor:
    """The emulated GPU as an executor.

    Of `settings` it takes the architecture, the step limit, the threads, the seed and the caches. With `shuffle` the
    seed also permutes the blocks, and warps interrupt each other. `progress` is called with the completed fraction of a
    launch. `instruments` record more than bounds and sectors, which takes longer, as caches do. Kernels of problems up
    to `brief_flops` are not optimized.
    """

    def __init__(
        self,
        settings: RunSettings = DEFAULT_SETTINGS,
        *,
        progress: Callable[[float], None] | None = None,
        instruments: Instruments = PLAIN,
        shuffle: bool = False,
        brief_flops: float = BRIEF_FLOPS,
    ) -> None:
        self.device = Device("emulator", f"emulated GPU ({settings.arch} PTX on the CPU)", settings.arch)
        self._settings, self._shuffle = settings, shuffle
        self._progress = progress
        self._workers = WorkerPool(usable_cores())
        self._instruments = instruments
        self._gpu = EmulatedGpu(settings, progress=progress, instruments=instruments, gpu=usual_gpu(settings.arch))
        self._modules = ModulesOfPlans()
        self._brief_flops = brief_flops
        self._runtime = RuntimeAhead()

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, npt.NDArray[Any]]) -> Execution:
        """Run `plan` on `inputs` and return its outputs, counts and findings. Raises what `Executor.run` raises."""
        return self._run(problem, plan, inputs, None)

    def observe(
        self,
        problem: BaseProblem,
        plan: Plan,
        inputs: Mapping[str, npt.NDArray[Any]],
        listener: EventListener,
        gpu: Gpu | None = None,
    ) -> Execution:
        """Run a plan without cache model, and report the events of its blocks to `listener`."""
        return self._run(problem, plan, inputs, RunEvents(listener, gpu))

    def _run(
        self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, npt.NDArray[Any]], events: RunEvents | None
    ) -> Execution:
        sharing = problem.sharing
        if sharing is not None:
            held = self._run(sharing.held, plan, sharing.split(inputs), events)
            return replace(
                held,
                outputs={name: sharing.join(held.outputs)[name] for name in plan.output_names(problem)},
                unwritten=None if held.unwritten is None else sharing.join(held.unwritten),
            )
        require_emulated(plan, problem)
        inputs = inputs if problem.spread is None else problem.spread.relabelled(inputs)
        pointers, memory = self._memory(problem, plan, inputs)
        hierarchy = None
        # Events change when warps wait. Of several devices, each has caches, in which copies leave something.
        if self._settings.caches is not None and events is None and problem.devices == 1:
            sizes = CacheSizes.of(self._settings.caches.gpu, self._settings.caches.l2_bytes)
            hierarchy = MemoryHierarchy(sizes, [(each.name, each.data.nbytes) for each in memory.buffers])
        modules = self._modules.of(plan)
        modules.begin_run()
        copies = CopiesOfRun(plan, memory, plan.all_buffers(problem))
        reports, findings = self._launch_all(plan, problem, pointers, memory, hierarchy, modules, copies, events)
        if not self._instruments.sanitizer:  # which reports every store into an input, even of the same value
            _require_inputs_kept(problem, memory, inputs, reports)
        _require_unused_kept(problem, memory, reports)
        written = [tensor for tensor in problem.tensors if tensor.name in plan.output_names(problem)]
        outputs = {tensor.name: view(tensor, memory.array(tensor.buffer)) for tensor in written}
        if self._instruments.sanitizer:
            findings += [finding for tensor in written for finding in memory.holes(tensor)]
        return Execution(
            outputs,
            reports,
            plan.allocated_bytes(problem),
            unwritten=self._unwritten(problem, plan, inputs, outputs),
            findings=tuple(findings) if self._instruments.sanitizer else None,
            altered_variables=modules.altered(),
            links=copies.links,
        )

    def _memory(
        self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, npt.NDArray[Any]]
    ) -> tuple[Pointers, RunMemory]:
        """Fresh memory for a run, and what kernels get in place of names and tensor maps."""
        buffers, pointers = _memory_of(plan, problem)
        given = {**placed_inputs(problem, inputs), MAPS: _encoded(plan, pointers)}
        return pointers, RunMemory(problem, buffers, given, self._instruments.sanitizer)

    def _unwritten(
        self,
        problem: BaseProblem,
        plan: Plan,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Mapping[str, npt.NDArray[Any]],
    ) -> dict[str, npt.NDArray[np.bool_]] | None:
        """Masks of unwritten elements: outputs that look unwritten are tested by a second run that starts with zeros.

        An element that keeps its initial value in both runs is unwritten. None if the second run faults.
        """
        given = {tensor.name for tensor in problem.with_role(IN_OUT)}  # what is in them before a run is no sign
        doubtful = {
            name: mask for name, output in outputs.items() if name not in given and (mask := untouched(output)).any()
        }
        if not doubtful:
            return {}
        pointers, memory = self._memory(problem, plan, inputs)
        tensors = [problem.tensor(name) for name in doubtful]
        for tensor in tensors:
            memory.clear(tensor.buffer)
        modules = LoadedModules()  # fresh ones: this run's changes to variables must not persist
        modules.begin_run()
        try:
            copies = CopiesOfRun(plan, memory, plan.all_buffers(problem))
            self._launch_all(plan, problem, pointers, memory, None, modules, copies)
        except KernelFault:
            return None
        return {
            tensor.name: doubtful[tensor.name] & all_zero(view(tensor, memory.array(tensor.buffer)))
            for tensor in tensors
        }

    def prepare(self, problem: BaseProblem, plan: Plan) -> None:
        """Compile all kernels that `plan` launches ahead of `run`. May be called from several threads at once.

        Raises what `run` would raise for them.
        """
        self._runtime.start(self._workers)
        _, pointers = _memory_of(plan, problem)
        # Compile all PTX first: the language's compiler processes one kernel at a time and should not wait for LLVM.
        kernels = [compile_kernel(step.kernel, _arguments(step, pointers), self.device.arch) for step in plan.launches]
        for compiled in kernels:
            with self._workers.borrow() as worker:
                native_kernel(compiled.ptx, compiled.entry, worker, self._instruments, self._tier(problem))

    def _tier(self, problem: BaseProblem) -> Tier:
        is_brief = self._brief_flops > 0 and problem.flops <= self._brief_flops
        return Tier.BASELINE if is_brief else Tier.OPTIMIZED

    def _options(self, problem: BaseProblem) -> LaunchOptions:
        steps, together = step_limits(self._settings.step_limit, problem.flops)
        return LaunchOptions(steps, self._settings.cores, self._settings.seed, self._shuffle, cluster_limit=together)

    def _launch_all(
        self,
        plan: Plan,
        problem: BaseProblem,
        pointers: Pointers,
        memory: RunMemory,
        hierarchy: MemoryHierarchy | None,
        modules: LoadedModules,
        copies: CopiesOfRun,
        events: RunEvents | None = None,
    ) -> tuple[tuple[LaunchReport, ...], list[Finding]]:
        """Run all launches and copies. A fault carries the sanitizer's findings so far."""
        reports: list[LaunchReport] = []
        findings: list[Finding] = []
        previous = {step.device: PreviousLaunch() for step in plan.launches}
        for number, step in enumerate(plan.launches):
            wanted = None if events is None else replace(events, number=number)
            copies.begin_launch(number)
            try:
                report, found = self._launch(
                    step, problem, pointers, memory, hierarchy, modules, previous[step.device], wanted
                )
                copies.require_apart(number, report)
            except KernelFault as fault:
                fault.findings = (*findings, *fault.findings)
                raise
            reports.append(report)
            findings += found
        copies.begin_launch(len(plan.launches))
        return tuple(reports), findings

    def _launch(
        self,
        step: Launch,
        problem: BaseProblem,
        pointers: Pointers,
        memory: RunMemory,
        hierarchy: MemoryHierarchy | None,
        modules: LoadedModules,
        previous: PreviousLaunch,
        events: RunEvents | None = None,
    ) -> tuple[LaunchReport, tuple[Finding, ...]]:
        args = _arguments(step, pointers)
        compiled = compile_kernel(step.kernel, args, self.device.arch)
        step = compiled.configured(step)
        report, findings = self._gpu.launch(
            compiled,
            compiled.pack(args),
            replace(Geometry.of(step), cooperative=compiled.cooperative),
            memory.buffers,
            modules.of(compiled.module),
            self._options(problem),
            name=step.kernel_name,
            tier=self._tier(problem),
            hierarchy=hierarchy,
            events=events,
            previous=previous,
        )
        return report, findings or ()


def _memory_of(plan: Plan, problem: BaseProblem) -> tuple[dict[str, Buffer], Pointers]:
    """All buffers, including that of tensor maps, and their addresses."""
    buffers, maps = plan.all_buffers(problem), addressed(plan)
    if maps:
        buffers[MAPS] = Buffer(MAPS, (len(maps), MAP_BYTES), "uint8")
    addresses = {name: at.buffer_address(index) for index, name in enumerate(buffers)}
    pointers: Pointers = {
        name: DevicePointer(addresses[view.buffer] + view.offset_bytes, view.shape, view.dtype, view.strides)
        for name, view in plan.views(problem).items()
    }
    for number, tensor_map in enumerate(maps):
        pointers[tensor_map] = DevicePointer(addresses[MAPS] + MAP_BYTES * number, (MAP_BYTES,), "uint8")
    return buffers, pointers


def _encoded(plan: Plan, pointers: Pointers) -> npt.NDArray[np.uint8]:
    """The contents of the buffer of tensor maps."""
    return np.frombuffer(b"".join(_by_value(each, pointers).tobytes() for each in addressed(plan)), np.uint8)


def _by_value(tensor_map: TensorMap, pointers: Pointers) -> np.void:
    return encode(tensor_map, pointers[tensor_map.buffer].address)


def _arguments(step: Launch, pointers: Pointers) -> tuple[Any, ...]:
    return tuple(map_leaves(lambda leaf: _argument(leaf, pointers), argument) for argument in step.args)


def _argument(argument: Any, pointers: Pointers) -> Any:
    if isinstance(argument, TensorMap):
        place = pointers.get(argument)
        return _by_value(argument, pointers) if place is None else np.uint64(place.address)
    if isinstance(argument, Reshaped):
        buffer = pointers[argument.buffer]
        return DevicePointer(buffer.address, argument.shape, buffer.dtype)
    return pointers[argument] if isinstance(argument, str) else argument


def _require_inputs_kept(
    problem: BaseProblem,
    memory: RunMemory,
    inputs: Mapping[str, npt.NDArray[Any]],
    reports: Sequence[LaunchReport],
) -> None:
    """Raise `KernelFault` if a store has changed an input. Stores are always counted."""
    only_read = problem.with_role(INPUT)
    lines = _lines_that_store(reports, {tensor.buffer for tensor in only_read})
    if lines:
        require_kept(
            [tensor for tensor in only_read if tensor.buffer in lines],
            inputs,
            lambda tensor: view(tensor, memory.array(tensor.buffer)),
            lambda tensor: " and ".join(lines[tensor.buffer]),
        )


def _require_unused_kept(problem: BaseProblem, memory: RunMemory, reports: Sequence[LaunchReport]) -> None:
    """Raise `KernelFault` if a store has changed an element that belongs to no tensor."""
    placed = {tensor.buffer for tensor in problem.tensors if tensor.placement is not None}
    for name, lines in _lines_that_store(reports, placed).items():
        require_unused_kept(problem.tensors, name, memory.array(name), " and ".join(lines))


def _lines_that_store(reports: Sequence[LaunchReport], buffers: Collection[str]) -> dict[str, dict[str, None]]:
    """For each of these buffers that some line stores into, the lines, in order."""
    lines: dict[str, dict[str, None]] = {}
    for report in reports:
        for site in report.traffic or ():
            if site.kind in WRITES and site.buffer in buffers:
                line = f"kernel {report.kernel}, {site.file}:{site.line}" if site.file else f"kernel {report.kernel}"
                lines.setdefault(site.buffer, {})[line] = None
    return lines


FEWEST_STEPS = 1 << 24
"""Minimum limit of a warp, for any problem: a second of a small loop."""
STEPS_PER_FLOP = 16
"""Instructions per FLOP. A single warp that does all of a problem's operations needs a tenth of an instruction for
each."""
WARPS_AT_LIMIT = 2
"""All warps of a cluster together may run this many times a warp's limit, since they share the work."""


def step_limits(chosen: int | None, flops: int) -> tuple[int, int]:
    """The maximum instructions of a warp, and of all warps of a cluster together (0 for no limit).

    `chosen` overrides the first; by default the problem's `flops` determine both.
    """
    if chosen is not None:
        return chosen, 0
    limit = max(FEWEST_STEPS, min(MOST_STEPS, STEPS_PER_FLOP * flops))
    return limit, WARPS_AT_LIMIT * limit
