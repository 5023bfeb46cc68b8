"""GPU memory for interleaved runs of several contenders: shared inputs, and scratch that they use in turns.

Interleaved runs need everything in memory at once. There is one copy of each input set. Outputs and scratch lie in one
arena, as large as the largest plan requires, which every contender uses from its beginning. Of a problem that several
devices compute, each GPU has the parts of its devices, and an arena.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from harness.execution.judging.kept_inputs import require_kept
from harness.gpu.context import POISON_BYTE, GpuContext, kernel_dtype, kernel_values, views_of
from harness.gpu.plan_devices import PlanDevices
from harness.gpu.plan_run import PlanRun
from harness.model.drawn_tensor import ELEMENTS_PER_COUNTER, ONE_OVER_DEVIATION, DrawnTensor
from harness.model.plan import Buffer, Launch, Plan
from harness.model.problem import IN_OUT, INPUT, BaseProblem, Tensor
from harness.model.sharing import Sharing
from harness.support.errors import KernelFault

Inputs = Mapping[str, np.ndarray | DrawnTensor]
_ALIGN_BYTES = 512


class GpuStage:
    """Input sets of one problem on the GPUs, and the shared arenas. Valid within `PlanDevices.memory()`."""

    def __init__(
        self,
        context: GpuContext,
        problem: BaseProblem,
        input_sets: Sequence[Inputs],
        plans: Sequence[Plan],
        devices: PlanDevices | None = None,
    ) -> None:
        """`devices` are the GPUs of a problem of several devices, that of `context` first."""
        self.devices = devices = devices or PlanDevices(context, 1)
        self.context = context
        self.sharing = problem.sharing
        self.problem = problem if self.sharing is None else self.sharing.held
        self.whole = problem
        self.inputs: list[dict[str, Any]] = []
        self._values = input_sets if self.sharing is None else [_split(self.sharing, values) for values in input_sets]
        buffers = Plan(()).all_buffers(self.problem)
        self._given = {tensor.buffer for tensor in self.problem.inputs}
        for values in self._values:
            of_buffers = {
                name: devices.on(buffers[name].device).allocate(buffers[name]) for name in sorted(self._given)
            }
            for tensor in self.problem.inputs:
                if tensor.placement is not None:
                    self.on(tensor).fill(of_buffers[tensor.buffer], POISON_BYTE)
            arrays = views_of(self.context, self.problem, of_buffers)
            self.inputs.append(arrays)
            self._put(values, arrays)
        self._arenas = {context: _arena(context, size) for context, size in self._arena_bytes(plans).items()}

    def on(self, tensor: Tensor) -> GpuContext:
        """The context of the GPU that holds a tensor."""
        return self.devices.on(tensor.device)

    def bind(self, plan: Plan) -> BoundPlan:
        """Compile a plan's launches and bind them to every set of inputs. Raises `CompileError`, `PlanError`."""
        used = dict.fromkeys(self.devices.contexts, 0)
        own = {}
        for name, buffer in self._own_buffers(plan).items():
            context = self.devices.on(buffer.device)
            place = self._arenas[context].data + used[context]
            own[name] = context.cupy.ndarray(buffer.shape, kernel_dtype(buffer.dtype), place)
            used[context] += _aligned(buffer.size_bytes)
        return BoundPlan(self, plan, own)

    def require_inputs_kept(self, number: int, kernels: str) -> None:
        """Restore that input set and raise `KernelFault` if `kernels` have changed one of its inputs."""
        arrays, values = self.inputs[number], self._values[number]
        try:
            require_kept(
                [
                    tensor
                    for tensor in self.problem.with_role(INPUT)
                    if not self._is_as_drawn(values, arrays, tensor.name)
                ],
                values,
                lambda tensor: self.on(tensor).download(arrays[tensor.name], tensor.dtype),
                lambda tensor: f"kernel {kernels}",
            )
        except KernelFault:
            self._put(values, arrays)
            raise

    def restore_updated(self, number: int) -> None:
        """Give the tensors of that input set that plans write a part of (role `IN_OUT`) their values again."""
        for tensor in self.problem.with_role(IN_OUT):
            self.on(tensor).upload(self.inputs[number][tensor.name], np.asarray(self._values[number][tensor.name]))

    def _arena_bytes(self, plans: Sequence[Plan]) -> dict[GpuContext, int]:
        """What the largest plan requires of each GPU."""
        most = dict.fromkeys(self.devices.contexts, 0)
        for plan in plans:
            own = self._own_buffers(plan).values()
            for context in most:
                of_plan = sum(_aligned(b.size_bytes) for b in own if self.devices.on(b.device) is context)
                most[context] = max(most[context], of_plan)
        return most

    def _own_buffers(self, plan: Plan) -> dict[str, Buffer]:
        """The plan's buffers but for inputs."""
        return {name: b for name, b in plan.all_buffers(self.problem).items() if name not in self._given}

    def _put(self, values: Inputs, arrays: Mapping[str, Any]) -> None:
        """Put inputs into the GPUs' memory: copy them, or draw them there."""
        for tensor in self.problem.inputs:
            given, array = values[tensor.name], arrays[tensor.name]
            if tensor.placement is not None:
                array[...] = self.context.cupy.asarray(kernel_values(np.asarray(given)))
            elif isinstance(given, DrawnTensor):
                self.context.bind(drawing(given, tensor.name), arrays)()
            else:
                self.on(tensor).upload(array, given)

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


class BoundPlan:
    """A plan that is ready to run on any of the stage's input sets."""

    def __init__(self, stage: GpuStage, plan: Plan, own: dict[str, Any]) -> None:
        self._stage = stage
        self._buffers = plan.all_buffers(stage.problem)
        self._own = own
        self._views = views_of(stage.context, stage.problem, own)
        self._output_names = plan.output_names(stage.whole)
        self._outputs = [stage.problem.tensor(name) for name in plan.output_names(stage.problem)]
        self._runs = [PlanRun(stage.devices, plan, self._buffers, inputs | self._views) for inputs in stage.inputs]

    def enqueue(self, inputs: int, launches: bool = True, copies: bool = True) -> None:
        """Enqueue all launches and copies on that input set, without waiting, or only the ones or the others.

        A fault that CUDA reports here is attributed to its kernel.
        """
        run = self._runs[inputs]
        with self._stage.context.faults_named(run.kernels):
            run.enqueue(launches, copies)

    def outputs(self, inputs: int) -> dict[str, np.ndarray]:
        """Run once more on memory full of NaN and return the plan's outputs.

        Raises for faults and for changed inputs.
        """
        stage, run = self._stage, self._runs[inputs]
        for name, array in self._own.items():
            stage.devices.on(self._buffers[name].device).fill(array, POISON_BYTE)
        stage.restore_updated(inputs)
        run.run()
        stage.require_inputs_kept(inputs, run.kernels)
        arrays = stage.inputs[inputs] | self._views
        found = {tensor.name: stage.on(tensor).download(arrays[tensor.name], tensor.dtype) for tensor in self._outputs}
        if stage.sharing is None:
            return found
        whole = stage.sharing.join(found)
        return {name: whole[name] for name in self._output_names}


def _split(sharing: Sharing, values: Inputs) -> Inputs:
    """The parts of all inputs. Those that would be drawn on a GPU are drawn here."""
    return sharing.split({name: np.asarray(given) for name, given in values.items()})


def _arena(context: GpuContext, size_bytes: int) -> Any:
    with context.current():
        return context.cupy.empty(size_bytes, dtype="uint8")


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


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
