"""GPU memory for interleaved runs of several contenders: shared inputs, and scratch that they use in turns.

Interleaved runs need everything in memory at once. There is one copy of each input set. Outputs and scratch lie in one
arena, as large as the largest plan requires, which every contender uses from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.execution.judging.kept_inputs import require_kept
from harness.gpu.context import POISON_BYTE, GpuContext, kernel_dtype
from harness.gpu.drawn_inputs import counting_changes, drawing
from harness.model.drawn_tensor import DrawnTensor
from harness.model.plan import Buffer, Plan
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
        self.context = context
        self.problem = problem
        self.inputs: list[dict[str, Any]] = []
        self._values = input_sets
        buffers = Plan(()).all_buffers(problem)
        self._given = {tensor.name for tensor in problem.inputs}
        for values in input_sets:
            arrays = {tensor.name: context.allocate(buffers[tensor.name]) for tensor in problem.inputs}
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
        for name, array in arrays.items():
            given = values[name]
            if isinstance(given, DrawnTensor):
                self.context.bind(drawing(given, name), arrays)()
            else:
                self.context.upload(array, given)

    def _is_as_drawn(self, values: Inputs, arrays: Mapping[str, Any], name: str) -> bool:
        """Whether an input was drawn on the GPU and is unchanged."""
        given = values[name]
        if not isinstance(given, DrawnTensor):
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
        self._output_names = plan.output_names(stage.problem)
        self._dtypes = {name: buffer.dtype for name, buffer in plan.all_buffers(stage.problem).items()}
        bind = stage.context.bind
        self._calls = [[bind(launch, inputs | own) for launch in plan.launches] for inputs in stage.inputs]

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
        return {name: self._context.download(self._own[name], self._dtypes[name]) for name in self._output_names}


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def _room_bytes(plan: Plan, problem: BaseProblem) -> int:
    given = {tensor.name for tensor in problem.inputs}
    return sum(_aligned(b.size_bytes) for name, b in plan.all_buffers(problem).items() if name not in given)
