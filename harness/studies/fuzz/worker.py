"""The worker's side of a campaign: a process that examines the cases that come through a pipe, one after the other."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from harness.execution.protocol import Executor
from harness.model.case import Case
from harness.model.variant import Variant
from harness.operations.attention.strategies import Build
from harness.studies.fuzz.builds import builds_for
from harness.studies.fuzz.examination import examine
from harness.support.errors import SandboxError
from harness.support.exception_place import where_and_what

if TYPE_CHECKING:
    from harness.emulator.plan_sanitizer import EmulatorSanitizer

Load = Callable[[], Variant]
"""Makes the variant in a process of its own, so it has to be picklable: a function of a module, or a partial of one."""


@dataclass(frozen=True)
class Machine:
    """Which executor a worker makes for itself."""

    kind: str = "emulator"
    """`emulator` or `gpu`."""
    arch: str = "sm_90"
    """What the emulator's kernels are compiled for."""
    step_limit: int = 50_000_000
    """Instructions that a warp of the emulator may run: far more than a problem of a few tiles takes."""
    threads: int = 1
    """The emulator's CPU threads. Problems are small: one is the fastest."""
    sanitize: bool = False
    """On the emulator: look for races, reads of memory that nobody wrote and the like in every case, too."""

    def executor(self) -> Executor:
        """A fresh one. Raises `SandboxError` where there is no GPU and one is asked for."""
        if self.kind == "gpu":
            from harness.gpu.executor import GpuExecutor

            return GpuExecutor(timed=False)
        from harness.emulator.executor import EmulatorExecutor

        return EmulatorExecutor(self.arch, self.step_limit, self.threads)

    def sanitizer(self) -> EmulatorSanitizer | None:
        """What looks for findings, if it is asked for."""
        if not self.sanitize:
            return None
        from harness.emulator.plan_sanitizer import EmulatorSanitizer

        return EmulatorSanitizer(self.arch, self.step_limit, shuffled_runs=1)


def serve(connection: Connection, load: Load, machine: Machine, builds: tuple[Build, ...], log: Path) -> None:
    """Send what `builds` come to for the variant, or why it cannot be had; then receive cases and send answers.

    It ends with the pipe.

    What anything writes to standard output or error goes to `log`: the last words of a process that dies.
    """
    # Ctrl-C is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    faulthandler.enable()
    try:
        variant, executor, sanitizer = load(), machine.executor(), machine.sanitizer()
        own_builds = builds_for(variant, builds)
    except Exception as error:
        connection.send(str(error) if isinstance(error, SandboxError) else where_and_what(error))
        return
    connection.send(own_builds)
    while True:
        try:
            case = connection.recv()
        except EOFError:
            return
        assert isinstance(case, Case)
        answer = examine(case, variant, executor, sanitizer)
        connection.send(answer)
        if answer.broken:
            return
