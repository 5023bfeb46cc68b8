"""Runs plans natively: its toolchain launches a kernel. Plans of several devices run on several GPUs (`PlanRun`)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.execution.judging.accuracy import all_zero, untouched
from harness.execution.judging.kept_inputs import require_kept, require_unused_kept
from harness.execution.protocol import Device, Execution, LaunchReport
from harness.gpu.context import POISON_BYTE, GpuContext, gpu_available, views_of
from harness.gpu.plan_devices import PlanDevices
from harness.gpu.plan_run import PlanRun
from harness.gpu.stopwatch import Stopwatch
from harness.model.placed_tensors import placed_inputs
from harness.model.plan import Plan
from harness.model.problem import IN_OUT, INPUT, BaseProblem, Tensor
from harness.model.spread import Spread
from harness.support.intervals import Interval, median_interval

FEWEST_TIMED_RUNS, MOST_TIMED_RUNS = 9, 60
TIMED_MS = 200.0
"""Timed runs are repeated until they add up to this time, within the two limits above."""


class GpuExecutor:
    """The executor protocol on the current CUDA device, and on others for plans of several devices.

    Raises `SandboxError` if there is no usable GPU.
    """

    device: Device

    def __init__(self, timed: bool = True, poison: bool = True) -> None:
        """With `timed` False each plan runs once, for a profiler, and `time_ms` is None.

        With `poison` False outputs and scratch are left uninitialized, so that a sanitizer knows that they are
        unwritten.
        """
        self._timed = timed
        self._poison = poison
        self._context = GpuContext()
        self._devices: dict[int, PlanDevices] = {}
        self.device = self._context.device

    @staticmethod
    def available() -> bool:
        """Whether CuPy is installed and finds a GPU. Never raises, loads no compiler, creates no context."""
        return gpu_available()

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        """Run `plan` once for its outputs, then several times for its time (see `stopwatch`).

        The time is that of all launches and copies together, from a common start to the end of the last device.
        Scratch and outputs are filled with NaN before the first run. Tensors of the role `IN_OUT` have their given
        values before that run, whose outputs count, and what earlier runs left in them before the others. Raises what
        `Executor.run` raises. After a fault such as an illegal address, CUDA rejects all further work of this process:
        later runs raise a `SandboxError` that names the kernel at fault.
        """
        sharing = problem.sharing
        if sharing is not None:
            held = self.run(sharing.held, plan, sharing.split(inputs))
            return replace(
                held,
                outputs={name: sharing.join(held.outputs)[name] for name in plan.output_names(problem)},
                unwritten=None if held.unwritten is None else sharing.join(held.unwritten),
            )
        self._context.require_alive()
        devices = self._devices_of(problem.devices)
        with devices.memory():
            outputs, unwritten, time_ms = self._run(devices, problem, plan, inputs)
        return Execution(
            outputs=outputs,
            launches=tuple(LaunchReport(launch.kernel_name, traffic=None) for launch in plan.launches),
            allocated_bytes=plan.allocated_bytes(problem),
            time_ms=time_ms,
            unwritten=unwritten,
        )

    def _devices_of(self, count: int) -> PlanDevices:
        """The GPUs of so many devices, whose contexts keep the modules that they have loaded."""
        if count not in self._devices:
            self._devices[count] = PlanDevices(self._context, count)
        return self._devices[count]

    def _run(
        self, devices: PlanDevices, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, npt.NDArray[np.bool_]] | None, Interval | None]:
        """Outputs, masks of their unwritten elements, and time.

        All arrays are local to this method, so that the pools have them back when it returns.
        """
        context, buffers, spread = self._context, plan.all_buffers(problem), problem.spread
        inputs = inputs if spread is None else spread.relabelled(inputs)
        given = placed_inputs(problem, inputs)
        inputs_in = {tensor.buffer: tensor for tensor in problem.inputs}
        places = {name: devices.on(buffer.device) for name, buffer in buffers.items()}
        of_buffers: dict[str, Any] = {name: places[name].allocate(buffer) for name, buffer in buffers.items()}
        for name, values in given.items():
            _upload(places[name], spread, inputs_in[name], values, of_buffers[name])
        arrays = views_of(context, problem if spread is None else spread.problem, of_buffers)
        run = PlanRun(devices, plan, buffers, arrays)
        for name, array in of_buffers.items():
            if self._poison and name not in given:
                places[name].fill(array, POISON_BYTE)
        with nullcontext() if self._timed else context.shown_to_profilers():
            run.run()
        kernels = run.kernels
        tensors = {tensor.name: tensor for tensor in problem.tensors}

        def download(name: str) -> np.ndarray:
            return _download(places[tensors[name].buffer], spread, tensors[name], arrays[name])

        require_kept(
            problem.with_role(INPUT),
            inputs,
            lambda tensor: download(tensor.name),
            lambda tensor: f"kernel {kernels}",
        )
        outputs = {name: download(name) for name in plan.output_names(problem)}
        placed = {tensor.buffer: tensor for tensor in problem.outputs if tensor.placement and self._poison}
        for name, tensor in placed.items():
            after = of_buffers[name] if spread is None else spread.by_entry(tensor, of_buffers[name], is_huge=True)
            after = _download(places[name], spread, tensor, after).reshape(-1)
            require_unused_kept(problem.tensors, name, after, f"kernel {kernels}")
        if not self._timed:
            return outputs, None, None
        with context.faults_named(kernels):
            unwritten: dict[str, npt.NDArray[np.bool_]] = {}
            own = [name for name in outputs if tensors[name].role != IN_OUT]
            doubtful = {name: mask for name in own if (mask := untouched(outputs[name])).any()}
            if doubtful:
                # Run again with outputs of zeros: an element that is unchanged in both runs is unwritten.
                for name in doubtful:
                    buffer = tensors[name].buffer
                    places[buffer].fill(of_buffers[buffer], 0)
                run.enqueue()
                devices.synchronize()
                for name, mask in doubtful.items():
                    unwritten[name] = mask & all_zero(download(name))
            return outputs, unwritten, _time(devices, run)


def _upload(context: GpuContext, spread: Spread | None, tensor: Tensor, values: np.ndarray, array: Any) -> None:
    """Copy an input to the GPU; into the array of a huge problem, its entries, amid NaN patterns."""
    if spread is None:
        context.upload(array, values)
        return
    if tensor.dtype == "int32":
        # All sequences run: spans of rows that are no numbers would lead kernels out of their arrays.
        context.upload(array, values if len(values) == len(array) else np.repeat(values[:1], len(array), axis=0))
    else:
        context.fill(array, POISON_BYTE)
    huge, small = spread.by_entry(tensor, array, is_huge=True), spread.by_entry(tensor, values, is_huge=False)
    for here, there in spread.pieces(tensor):
        context.upload(huge[there], small[here])


def _download(context: GpuContext, spread: Spread | None, tensor: Tensor, array: Any) -> np.ndarray:
    if spread is None:
        return context.download(array, tensor.dtype)
    parts = {here.start: array[there] for here, there in spread.pieces(tensor)}
    return np.concatenate([context.download(part, tensor.dtype) for part in parts.values()])


def _time(devices: PlanDevices, run: PlanRun) -> Interval:
    """Median time of cold runs."""
    stopwatch = Stopwatch(devices.first, devices.contexts[1:])
    stopwatch.cold_ms(run.enqueue)  # warm-up
    times_ms: list[float] = []
    while len(times_ms) < FEWEST_TIMED_RUNS or (sum(times_ms) < TIMED_MS and len(times_ms) < MOST_TIMED_RUNS):
        times_ms.append(stopwatch.cold_ms(run.enqueue))
    return median_interval(times_ms)
