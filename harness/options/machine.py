"""What worker processes run on: which executor each makes for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.execution.run_settings import RunSettings

if TYPE_CHECKING:
    from harness.emulator.plan_sanitizer import EmulatorSanitizer
    from harness.execution.protocol import Executor


WORKER = RunSettings(device="emulator", threads=1)
"""Of a worker process: its problems are small, and one thread is the fastest."""


@dataclass(frozen=True)
class Machine:
    """Makes the executor of a worker process."""

    settings: RunSettings = WORKER
    """Its `device` is `emulator` or `gpu`, never `auto`."""

    @property
    def kind(self) -> str:
        """`emulator` or `gpu`."""
        return self.settings.device

    def executor(self, progress: Callable[[float], None] | None = None) -> Executor:
        """A fresh one. The emulator tells `progress` which fraction of a launch is done, now and then.

        Raises `SandboxError` where there is no GPU and one is asked for.
        """
        if self.kind == "gpu":
            return isolated_gpu(timed=False)
        from harness.emulator.executor import EmulatorExecutor

        return EmulatorExecutor(self.settings, progress=progress)

    def sanitizer(self, progress: Callable[[float], None] | None = None) -> EmulatorSanitizer | None:
        """What looks for findings; None on a GPU. For `progress`, see `executor`."""
        if self.kind == "gpu":
            return None
        from harness.emulator.plan_sanitizer import EmulatorSanitizer

        return EmulatorSanitizer(self.settings, progress, shuffled_runs=1)


def isolated_gpu(timed: bool = True) -> Executor:
    """The GPU, on which each plan runs in its own planner. Raises `SandboxError` where there is no usable one."""
    from harness.execution.isolation.native import IsolatedExecutor
    from harness.gpu.context import GpuContext

    return IsolatedExecutor(GpuContext().device, "harness.gpu.executor:GpuExecutor", timed=timed)
