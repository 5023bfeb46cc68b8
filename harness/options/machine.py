"""Describes the device of worker processes, and creates their executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.execution.run_settings import RunSettings

if TYPE_CHECKING:
    from harness.emulator.plan_sanitizer import EmulatorSanitizer
    from harness.execution.protocol import Executor


WORKER = RunSettings(device="emulator", threads=1)
"""Settings of a worker process. Its problems are small, so one thread is the fastest."""


@dataclass(frozen=True)
class Machine:
    """The device of a worker process."""

    settings: RunSettings = WORKER
    """Settings whose `device` is `emulator` or `gpu`, never `auto`."""

    @property
    def kind(self) -> str:
        """Kind of the device: `emulator` or `gpu`."""
        return self.settings.device

    def executor(self, progress: Callable[[float], None] | None = None) -> Executor:
        """Return a new executor. The emulator calls `progress` occasionally with the completed fraction of a launch.

        Raises `SandboxError` if a GPU is required and none is available.
        """
        if self.kind == "gpu":
            return isolated_gpu(timed=False)
        from harness.emulator.executor import EmulatorExecutor

        return EmulatorExecutor(self.settings, progress=progress)

    def sanitizer(self, progress: Callable[[float], None] | None = None) -> EmulatorSanitizer | None:
        """Return a new sanitizer, or None on a GPU. `progress` is used as in `executor`."""
        if self.kind == "gpu":
            return None
        from harness.emulator.plan_sanitizer import EmulatorSanitizer

        return EmulatorSanitizer(self.settings, progress, shuffled_runs=1)


def isolated_gpu(timed: bool = True) -> Executor:
    """Return an executor that runs each plan on the GPU in its own planner. Raises `SandboxError` without a GPU."""
    from harness.execution.isolation.native import IsolatedExecutor
    from harness.gpu.context import GpuContext

    return IsolatedExecutor(GpuContext().device, "harness.gpu.executor:GpuExecutor", timed=timed)
