"""What worker processes run on: which executor each makes for itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.emulator.plan_sanitizer import EmulatorSanitizer
    from harness.execution.protocol import Executor


@dataclass(frozen=True)
class Machine:
    """Which executor a worker makes for itself."""

    kind: str = "emulator"
    """`emulator` or `gpu`."""
    arch: str = "sm_90"
    """What the emulator's kernels are compiled for."""
    step_limit: int | None = None
    """Instructions that a warp of the emulator may run; None: as many as it allows by itself."""
    threads: int = 1
    """The emulator's CPU threads. Problems are small: one is the fastest."""
    sanitize: bool = False
    """On the emulator: look for races, reads of memory that nobody wrote and the like in every case, not in those alone
    that ask for it."""

    def executor(self, progress: Callable[[float], None] | None = None) -> Executor:
        """A fresh one. The emulator tells `progress` which fraction of a launch is done, now and then.

        Raises `SandboxError` where there is no GPU and one is asked for.
        """
        if self.kind == "gpu":
            return isolated_gpu(timed=False)
        from harness.emulator.executor import EmulatorExecutor

        return EmulatorExecutor(self.arch, self.step_limit, self.threads, progress=progress)

    def sanitizer(self, progress: Callable[[float], None] | None = None) -> EmulatorSanitizer | None:
        """What looks for findings; None on a GPU. For `progress`, see `executor`."""
        if self.kind == "gpu":
            return None
        from harness.emulator.plan_sanitizer import EmulatorSanitizer

        return EmulatorSanitizer(self.arch, self.step_limit, progress=progress, shuffled_runs=1)


def isolated_gpu(timed: bool = True) -> Executor:
    """The GPU, on which each plan runs in its own planner. Raises `SandboxError` where there is no usable one."""
    from harness.execution.isolation.native import IsolatedExecutor
    from harness.gpu.context import GpuContext

    return IsolatedExecutor(GpuContext().device, "harness.gpu.executor:GpuExecutor", timed=timed)
