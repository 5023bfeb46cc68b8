"""Runs plans natively: each kernel's toolchain launches it, on one stream and with one memory pool."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.compilers.toolchain import Call
from harness.execution.judging.accuracy import all_zero, untouched
from harness.execution.judging.kept_inputs import require_kept, require_unused_kept
from harness.execution.protocol import Device, Execution, LaunchReport
from harness.gpu.context import POISON_BYTE, GpuContext, gpu_available, require_one_device, views_of
from harness.gpu.stopwatch import Stopwatch
from harness.model.placed_tensors import placed_inputs
from harness.model.plan import Plan
from harness.model.problem import BaseProblem, Tensor
from harness.model.spread import Spread
from harness.support.intervals import Interval, median_interval

FEWEST_TIMED_RUNS, MOST_TIMED_RUNS = 9, 60
TIMED_MS = 200.0
"""Timed runs are repeated until they add up to this time, within the two limits above."""


class GpuExecutor:
    """The executor protocol on the current CUDA device. Raises `SandboxError` if there is no usable GPU."""

    device: Device

    def __init__(self, timed: bool = True, poison: bool = True) -> None:
        """With `timed` False each plan runs once, for a profiler, and `time_ms` is None.

        With `poison` False outputs and scratch are left uninitialized, so that a sanitizer knows that they are
        unwritten.
        """
        self._timed = timed
        self._poison = poison
        self._context = GpuContext()
        self.device = self._context.device

    @staticmethod
    def available() -> bool:
        """Whether CuPy is installed and finds a GPU. Never raises, loads no compiler, creates no context."""
        return gpu_available()

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        """Run `plan` once for its outputs, then several times for its time (see `stopwatch`).

        The time is that of all launches together. Scratch and outputs are filled with NaN before the first run. Raises
        what `Executor.run` raises. After a fault such as an illegal address, CUDA rejects all further work of this
        process: later runs raise a `SandboxError` that names the kernel at fault.
        """
        self._context.require_alive()
        with self._context.memory():
            outputs, unwritten, time_ms = self._run(problem, plan, inputs)
        return Execution(
            outputs=outputs,
            launches=tuple(LaunchReport(launch.kernel_name, traffic=None) for launch in plan.launches),
            allocated_bytes=plan.allocated_bytes(problem),
            time_ms=time_ms,
            unwritten=unwritten,
        )

    def _run(
        self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, npt.NDArray[np.bool_]] | None, Interval | None]:
        """Outputs, masks of their unwritten elements, and time.

        All arrays are local to this method, so that the pool has them back when it returns.
        """
        require_one_device(problem)
        context, buffers, spread = self._context, plan.all_buffers(problem), problem.spread
        inputs = inputs if spread is None else spread.relabelled(inputs)
        given = placed_inputs(problem, inputs)
        inputs_in = {tensor.buffer: tensor for tensor in problem.inputs}
        of_buffers: dict[str, Any] = {name: context.allocate(buffer) for name, buffer in buffers.items()}
        for name, values in given.items():
            self._upload(spread, inputs_in[name], values, of_buffers[name])
        arrays = views_of(context, problem, of_buffers)
        calls = [context.bind(launch, arrays) for launch in plan.launches]
        for name, array in of_buffers.items():
            if self._poison and name not in given:
                context.fill(array, POISON_BYTE)
        with nullcontext() if self._timed else context.shown_to_profilers():
            for launch, call in zip(plan.launches, calls, strict=True):
                with context.faults_named(launch.kernel_name):
                    call()
                    # CUDA reports a fault at some later call; waiting here attributes it to this launch.
                    context.stream.synchronize()
        kernels = ", ".join(dict.fromkeys(launch.kernel_name for launch in plan.launches))
        require_kept(
            problem.inputs,
            inputs,
            lambda tensor: self._download(spread, tensor, arrays[tensor.name]),
            lambda tensor: f"kernel {kernels}",
        )
        tensors = {tensor.name: tensor for tensor in problem.tensors}
        outputs = {name: self._download(spread, tensors[name], arrays[name]) for name in plan.output_names(problem)}
        placed = {tensor.buffer: tensor for tensor in problem.outputs if tensor.placement and self._poison}
        for name, tensor in placed.items():
            after = context.download(of_buffers[name], tensor.dtype)
            require_unused_kept(problem.tensors, name, after, f"kernel {kernels}")
        if not self._timed:
            return outputs, None, None
        with context.faults_named(kernels):
            unwritten: dict[str, npt.NDArray[np.bool_]] = {}
            doubtful = {name: mask for name, output in outputs.items() if (mask := untouched(output)).any()}
            if doubtful:
                # Run again with outputs of zeros: an element that is unchanged in both runs is unwritten.
                for name in doubtful:
                    context.fill(of_buffers[tensors[name].buffer], 0)
                for call in calls:
                    call()
                for name, mask in doubtful.items():
                    unwritten[name] = mask & all_zero(self._download(spread, tensors[name], arrays[name]))
            return outputs, unwritten, self._time(calls)

    def _upload(self, spread: Spread | None, tensor: Tensor, values: np.ndarray, array: Any) -> None:
        """Copy an input to the GPU; into the array of a huge problem, its entries, amid NaN patterns."""
        if spread is None:
            self._context.upload(array, values)
            return
        if tensor.dtype == "int32":
            # All sequences run: spans of rows that are no numbers would lead kernels out of their arrays.
            self._context.upload(
                array, values if len(values) == len(array) else np.repeat(values[:1], len(array), axis=0)
            )
        else:
            self._context.fill(array, POISON_BYTE)
        for here, there in spread.pieces(tensor):
            self._context.upload(array[there], values[here])

    def _download(self, spread: Spread | None, tensor: Tensor, array: Any) -> np.ndarray:
        if spread is None:
            return self._context.download(array, tensor.dtype)
        parts = {here.start: array[there] for here, there in spread.pieces(tensor)}
        return np.concatenate([self._context.download(part, tensor.dtype) for part in parts.values()])

    def _time(self, calls: list[Call]) -> Interval:
        stopwatch = Stopwatch(self._context)

        def enqueue() -> None:
            for call in calls:
                call()

        stopwatch.cold_ms(enqueue)  # warm-up
        times_ms: list[float] = []
        while len(times_ms) < FEWEST_TIMED_RUNS or (sum(times_ms) < TIMED_MS and len(times_ms) < MOST_TIMED_RUNS):
            times_ms.append(stopwatch.cold_ms(enqueue))
        return median_interval(times_ms)
