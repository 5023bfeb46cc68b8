"""GPU memory for interleaved runs of several contenders: shared inputs, and scratch that they use in turns.

Interleaved runs need everything in memory at once. There is one copy of each input set. Outputs and scratch lie in one
arena, as large as the largest plan requires, which every contender uses from its beginning.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.execution.judging.kept_inputs import require_kept
from harness.gpu.context import POISON_BYTE, GpuContext, kernel_dtype, kernel_values, require_one_device, views_of
from harness.model.drawn_tensor import ELEMENTS_PER_COUNTER, ONE_OVER_DEVIATION, DrawnTensor
from harness.model.plan import Buffer, Launch, Plan
from harness.model.problem import BaseProblem
from harness.support.errors import KernelFault

Inputs = Mapping[str, np.ndarray | DrawnTensor]
_ALIGN_BYTES = 512


class GpuStage:
    """Input sets of one problem on the GPU, and the shared arena. Valid within `GpuContext.memory()`."""

    def __init__(
        self,
        context: GpuContext,
        problem: BaseProblem,
        input_sets: Sequence[Inputs],
        plans: Sequence[Plan],
    ) -> None:
        require_one_device(problem)
        self.context = context
        self.problem = problem
        self.inputs: list[dict[str, Any]] = []
        self._values = input_sets
        buffers = Plan(()).all_buffers(problem)
        self._given = {tensor.buffer for tensor in problem.inputs}
        for values in input_sets:
            of_buffers = {name: context.allocate(buffers[name]) for name in sorted(self._given)}
            for tensor in problem.inputs:
                if tensor.placement is not None:
                    context.fill(of_buffers[tensor.buffer], POISON_BYTE)
            arrays = views_of(context, problem, of_buffers)
            self.inputs.append(arrays)
            self._put(values, arrays)
        self._room = context.cupy.empty(max((_room_bytes(plan, problem) for plan in plans), default=0), dtype="uint8")

    def bind(self, plan: Plan) -> BoundPlan:
        """Compile a plan's launches and bind them to every set of inputs. Raises `CompileError`, `PlanError`."""
        offset, own = 0, {}
        for name, buffer in plan.all_buffers(self.problem).items():
            if name not in self._given:
                own[name] = self._place(buffer, offset)
                offset += _aligned(buffer.size_bytes)
        return BoundPlan(self, plan, own)

    def require_inputs_kept(self, number: int, kernels: str) -> None:
        """Restore that input set and raise `KernelFault` if `kernels` have changed one of its inputs."""
        arrays, values = self.inputs[number], self._values[number]
        try:
            require_kept(
                [tensor for tensor in self.problem.inputs if not self._is_as_drawn(values, arrays, tensor.name)],
                values,
                lambda tensor: self.context.download(arrays[tensor.name], tensor.dtype),
                lambda tensor: f"kernel {kernels}",
            )
        except KernelFault:
            self._put(values, arrays)
            raise

    def _put(self, values: Inputs, arrays: Mapping[str, Any]) -> None:
        """Put inputs into the GPU's memory: copy them, or draw them there."""
        for tensor in self.problem.inputs:
            given, array = values[tensor.name], arrays[tensor.name]
            if tensor.placement is not None:
                array[...] = self.context.cupy.asarray(kernel_values(np.asarray(given)))
            elif isinstance(given, DrawnTensor):
                self.context.bind(drawing(given, tensor.name), arrays)()
            else:
                self.context.upload(array, given)

    def _is_as_drawn(self, values: Inputs, arrays: Mapping[str, Any], name: str) -> bool:
        """Whether an input was drawn on the GPU and is unchanged."""
        given = values[name]
        if not isinstance(given, DrawnTensor) or not arrays[name].flags.c_contiguous:
            return False
        count = Buffer("changed elements", (1,), "int32")
        changed = self.context.allocate(count)
        self.context.fill(changed, 0)
        launch = counting_changes(given, name, count.name)
        self.context.bind(launch, {name: arrays[name], count.name: changed})()
        return not self.context.download(changed, count.dtype).any()

    def _place(self, buffer: Buffer, offset: int) -> Any:
        return self.context.cupy.ndarray(buffer.shape, kernel_dtype(buffer.dtype), self._room.data + offset)


class BoundPlan:
    """A plan that is ready to run on any of the stage's input sets."""

    def __init__(self, stage: GpuStage, plan: Plan, own: dict[str, Any]) -> None:
        self._context, self._stage = stage.context, stage
        self._plan = plan
        self._kernels = ", ".join(dict.fromkeys(launch.kernel_name for launch in plan.launches))
        self._own = own
        self._views = views_of(stage.context, stage.problem, own)
        self._output_names = plan.output_names(stage.problem)
        self._dtypes = {tensor.name: tensor.dtype for tensor in stage.problem.tensors}
        bind = stage.context.bind
        self._calls = [[bind(launch, inputs | self._views) for launch in plan.launches] for inputs in stage.inputs]

    def enqueue(self, inputs: int) -> None:
        """Enqueue all launches on that input set, without waiting.

        A fault that CUDA reports here is attributed to its kernel.
        """
        with self._context.faults_named(self._kernels):
            for call in self._calls[inputs]:
                call()

    def outputs(self, inputs: int) -> dict[str, np.ndarray]:
        """Run once more on memory full of NaN and return the plan's outputs.

        Raises for faults and for changed inputs.
        """
        for array in self._own.values():
            self._context.fill(array, POISON_BYTE)
        for launch, call in zip(self._plan.launches, self._calls[inputs], strict=True):
            with self._context.faults_named(launch.kernel_name):
                call()
                self._context.stream.synchronize()
        self._stage.require_inputs_kept(inputs, self._kernels)
        return {name: self._context.download(self._views[name], self._dtypes[name]) for name in self._output_names}


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def _room_bytes(plan: Plan, problem: BaseProblem) -> int:
    given = {tensor.buffer for tensor in problem.inputs}
    return sum(_aligned(b.size_bytes) for name, b in plan.all_buffers(problem).items() if name not in given)


THREADS = 256


def drawing(tensor: DrawnTensor, buffer: str) -> Launch:
    """A launch that fills the buffer with this name, which has the tensor's shape and dtype."""
    return _launch(_kernel("draw", tensor.dtype.name), tensor, buffer)


def counting_changes(tensor: DrawnTensor, buffer: str, count: str) -> Launch:
    """A launch that counts the elements of `buffer` that differ from the tensor's.

    It adds the number to the int32 in the buffer `count`.
    """
    return _launch(_kernel("count_changed", tensor.dtype.name), tensor, buffer, count)


def _launch(kernel: Any, tensor: DrawnTensor, *buffers: str) -> Launch:
    elements = int(np.prod(tensor.shape, dtype=np.int64))
    blocks = -(-elements // (ELEMENTS_PER_COUNTER * THREADS))
    numbers = (np.uint64(n) for n in (elements, tensor.seed, tensor.number))
    return Launch(kernel, (blocks,), (THREADS,), (*buffers, *numbers, ONE_OVER_DEVIATION))


@functools.cache
def _kernel(name: str, dtype: str) -> Any:
    import cupy

    text = Path(__file__).with_name("drawing.cu").read_text()
    return cupy.RawKernel(text, name, options=(f"-DSTORED_AS_{dtype}",))
