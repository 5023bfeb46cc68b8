"""An executor whose kernels are NumPy functions: what the harness does around kernels, tested without any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from attention_model import online_softmax

from harness.compilers import CompiledKernel, toolchains
from harness.compilers.native_gpu import NativeGpu
from harness.compilers.toolchain import Call, Toolchain
from harness.execution.protocol import Device, Execution, LaunchReport
from harness.execution.traffic.counts import SiteTraffic
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.plan import Buffer, Launch, Plan
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.support.errors import CompileError
from harness.support.intervals import Interval


@dataclass
class NumpyKernel:
    """Stands where a RawKernel would: called with the problem and all arrays, it fills O and what else it wants."""

    name: str
    body: Callable[[Problem, dict[str, np.ndarray]], None]
    read_sectors: int = 100
    write_sectors: int = 50
    local_sectors: int = 0


class NumpyToolchain(Toolchain):
    """The language of `NumpyKernel`, which nothing compiles: `NumpyExecutor` calls its functions."""

    name = "numpy"
    kernels = "a NumpyKernel"

    def owns(self, kernel: object) -> bool:
        return isinstance(kernel, NumpyKernel)

    def compile(self, kernel: Any, args: tuple[Any, ...], arch: str) -> CompiledKernel:
        raise CompileError(f"{kernel.name} is a function of NumPy's")

    def pack(self, compiled: CompiledKernel, args: tuple[Any, ...]) -> tuple[bytes, ...]:
        raise NotImplementedError

    def bind(self, launch: Launch, arrays: Mapping[str, Any], gpu: NativeGpu) -> Call:
        raise NotImplementedError

    def source(self, kernel: Any) -> str:
        raise NotImplementedError


if toolchains.toolchain_named(NumpyToolchain.name) is None:  # a test may import this module anew
    toolchains.TOOLCHAINS = (*toolchains.TOOLCHAINS, NumpyToolchain())


@dataclass
class NumpyExecutor:
    """`counts` False plays a GPU: no traffic, but a time per kernel name."""

    device: Device = field(default_factory=lambda: Device("emulator", "NumPy stand-in", "sm_90"))
    counts: bool = True
    times_ms: Mapping[str, float] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)

    def run(self, problem: Problem, plan: Plan, inputs: Mapping[str, np.ndarray]) -> Execution:
        arrays: dict[str, np.ndarray] = dict(inputs)
        for name, buffer in plan.all_buffers(problem).items():
            if name not in inputs:
                dtype = NUMPY_DTYPES.get(buffer.dtype) or np.dtype(buffer.dtype)
                arrays[name] = np.full(buffer.size_bytes, 0xFF, np.uint8).view(dtype).reshape(buffer.shape)
        reports = []
        for launch in plan.launches:
            self.runs.append(launch.kernel_name)
            launch.kernel.body(problem, arrays)
            traffic = (
                SiteTraffic("Q", "load", "kernel.cu", 1, 1, 1, launch.kernel.read_sectors, 1),
                SiteTraffic("O", "store", "kernel.cu", 2, 1, 1, launch.kernel.write_sectors, 1),
                SiteTraffic("local", "store", "kernel.cu", 3, 1, 1, launch.kernel.local_sectors, 1),
            )
            reports.append(LaunchReport(launch.kernel_name, traffic if self.counts else None))
        return Execution(
            outputs={name: arrays[name] for name in ("O", "lse") if name in arrays},
            launches=tuple(reports),
            allocated_bytes=plan.allocated_bytes(problem),
            time_ms=None if self.counts else self._time(plan),
        )

    def _time(self, plan: Plan) -> Interval:
        time_ms = sum(self.times_ms.get(launch.kernel_name, 1.0) for launch in plan.launches)
        return Interval(time_ms, time_ms, time_ms)


def numpy_variant(
    name: str, mutant: str | None = None, lse: bool = False, claim: Traffic | None = None, **kernel: Any
) -> Variant:
    """A variant whose one kernel is the NumPy model, right or with one of its bugs."""

    def body(problem: Problem, arrays: dict[str, np.ndarray]) -> None:
        outputs = online_softmax(problem, arrays, mutant=mutant)
        arrays["O"][...] = outputs["O"]
        if lse:
            arrays["lse"][...] = outputs["lse"]

    def plan(problem: Problem) -> Plan:
        buffers = (Buffer("lse", problem.lse_shape, "float32"),) if lse else ()
        return Plan((Launch(NumpyKernel(name, body, **kernel), (1,), (32,), ("Q", "K", "V", "O")),), buffers)

    return Variant(name=name, backend="numpy", plan=plan, claim=None if claim is None else lambda problem: claim)
