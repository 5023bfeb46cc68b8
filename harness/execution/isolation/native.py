"""Runs isolated variants natively: each plan runs in the process that made it, which returns outputs and times.

The kernel objects exist only in that process, where CuPy and Numba launch them. The outputs are judged in this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.compilers.remote_kernel import RemoteKernel
from harness.execution.isolation.process import RUN_SECONDS
from harness.execution.isolation.replies import Json, Malformed, checked
from harness.execution.isolation.variants import RemotePlanner
from harness.execution.protocol import Device, Execution, Executor, LaunchReport
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.support.errors import KernelFault, PlanError
from harness.support.intervals import Interval


class IsolatedExecutor:
    """An `Executor` that runs each plan in the process that made its kernels.

    Plans whose kernels are all objects of this process run in this process.
    """

    def __init__(self, device: Device, executor: str, **options: Json) -> None:
        """Store how each process creates its executor.

        `executor` names its class, such as `harness.gpu.executor:GpuExecutor`; `options` are its keyword arguments.
        """
        self.device = device
        self._executor, self._options = executor, options
        self._here: Executor | None = None

    def run(self, problem: BaseProblem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        """Run a plan, as `Executor.run` does.

        The process is replaced after a fault, because its CUDA context is unusable.
        """
        if plan.launches and not any(isinstance(launch.kernel, RemoteKernel) for launch in plan.launches):
            return self._executor_here().run(problem, plan, inputs)
        owner = _owner(plan)
        given = [np.ascontiguousarray(inputs[tensor.name]).tobytes() for tensor in problem.inputs]
        try:
            said, arrays = owner.run(problem, plan, given, self._executor, self._options, RUN_SECONDS)
        except KernelFault:
            owner.end()
            raise
        return Execution(
            outputs=_outputs(problem, plan, checked(said["outputs"], list), arrays),
            launches=tuple(LaunchReport(launch.kernel_name, traffic=None) for launch in plan.launches),
            allocated_bytes=plan.allocated_bytes(problem),
            time_ms=_interval(said["time_ms"]),
        )

    def _executor_here(self) -> Executor:
        """Return the executor for kernels that are objects of this process, such as those of a notebook."""
        if self._here is None:
            module, _, name = self._executor.partition(":")
            self._here = getattr(importlib.import_module(module), name)(**self._options)
        return self._here


def _owner(plan: Plan) -> RemotePlanner:
    owners = {launch.kernel.owner for launch in plan.launches if isinstance(launch.kernel, RemoteKernel)}
    if len(owners) != 1 or not all(isinstance(launch.kernel, RemoteKernel) for launch in plan.launches):
        raise PlanError("a plan that launches nothing, or kernels of several processes, has no process to run in")
    (owner,) = owners
    assert isinstance(owner, RemotePlanner)
    return owner


def _outputs(problem: BaseProblem, plan: Plan, names: list[Any], arrays: list[bytes]) -> dict[str, np.ndarray]:
    """Return the arrays by name, in their declared shapes and dtypes. Raises `Malformed` if any does not match."""
    tensors = {tensor.name: tensor for tensor in problem.tensors}
    if tuple(names) != plan.output_names(problem) or len(arrays) != len(names):
        raise Malformed(f"outputs {names!r:.200} came back")
    outputs = {}
    for name, data in zip(names, arrays):
        tensor = tensors[name]
        if len(data) != tensor.size_bytes:
            raise Malformed(f"{len(data)} bytes of {name} came back, and it has {tensor.size_bytes}")
        dtype = NUMPY_DTYPES.get(tensor.dtype) or np.dtype(tensor.dtype)
        outputs[name] = np.frombuffer(data, dtype).reshape(tensor.shape).copy()
    return outputs


def _interval(said: Json) -> Interval | None:
    if said is None:
        return None
    low, median, high = (float(checked(each, int, float)) for each in checked(said, list))
    if not 0 <= low <= median <= high:
        raise Malformed(f"a time of {said!r:.200} ms came back")
    return Interval(low, median, high)
