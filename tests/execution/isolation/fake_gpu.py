"""Plays the GPU of a planner: the emulator runs the true kernels there, and a time is made up."""

from __future__ import annotations

import dataclasses
import os

import numpy as np

from harness.emulator.executor import EmulatorExecutor
from harness.execution.protocol import Execution
from harness.execution.run_settings import RunSettings
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.support.errors import KernelFault
from harness.support.intervals import Interval


class FakeGpu:
    def __init__(self, timed: bool = True, does: str = "run") -> None:
        self._timed, self._does, self._lost = timed, does, False

    def run(self, problem: BaseProblem, plan: Plan, inputs: dict[str, np.ndarray]) -> Execution:
        if self._lost:
            raise AssertionError("a process with a lost context was asked again")
        if self._does == "fault" and problem.kv_len > 40:
            self._lost = True
            raise KernelFault("out of bounds", f"kernel {plan.launches[0].kernel_name}: an illegal address")
        if self._does == "die":
            os._exit(0)
        done = EmulatorExecutor(RunSettings(threads=1)).run(problem, plan, inputs)
        outputs = dict(done.outputs)
        if self._does == "shorten":
            outputs["O"] = outputs["O"][..., :-1]
        if self._does == "rename":
            outputs = {"P": outputs["O"]}
        return dataclasses.replace(done, outputs=outputs, time_ms=Interval(1.0, 2.0, 3.0) if self._timed else None)
