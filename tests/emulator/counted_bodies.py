"""The shared memory traffic of a kernel whose body is given."""

from __future__ import annotations

import numpy as np

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.instruments import Instruments
from harness.execution.traffic.counts import SharedTraffic
from harness.model.plan import Launch, Plan
from harness.operations.attention.problem import Problem

PROBLEM = Problem(heads=1, q_len=64, kv_len=64, head_dim=64)
INPUTS = {name: np.zeros((1, 1, 64, 64), np.float32) for name in "QKV"}


def plan(kernel: object, threads: int, *args: object) -> Plan:
    return Plan((Launch(kernel, (1,), (threads,), ("Q", "O", *args)),))


def counted(body: str, threads: int = 32, executor: EmulatorExecutor | None = None) -> tuple[SharedTraffic, ...] | None:
    import cupy

    source = (
        'extern "C" __global__ void k(const float* q, float* o) {\n'
        "__shared__ __align__(16) float t[4224]; int i = threadIdx.x;\n"
        f"{body}\n}}"
    )
    executor = executor or EmulatorExecutor(instruments=Instruments(bank_conflicts=True))
    return executor.run(PROBLEM, plan(cupy.RawKernel(source, "k"), threads), INPUTS).launches[0].shared
