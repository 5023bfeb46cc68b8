"""The worker's side of a campaign: a process that examines the cases that come through a pipe, one after the other."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from harness.case import Case
from harness.errors import SandboxError
from harness.exception_place import where_and_what
from harness.executors import Executor
from harness.fuzz.builds import builds_for
from harness.fuzz.examination import examine
from harness.strategies import Build
from harness.variant import Variant

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
    """The emulator: look for races, reads of what nobody wrote and outputs left out, too, in every case."""

    def executor(self) -> Executor:
        """A fresh one. Raises `SandboxError` where there is no GPU and one is asked for."""
        if self.kind == "gpu":
            from harness.executors.gpu import GpuExecutor

            return GpuExecutor(timed=False)
        from harness.emulator.instruments import Instruments
        from harness.executors.emulator import EmulatorExecutor

        instruments = Instruments(sanitizer=self.sanitize)
        return EmulatorExecutor(self.arch, self.step_limit, self.threads, instruments=instruments)


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
        variant, executor = load(), machine.executor()
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
        answer = examine(case, variant, executor)
        connection.send(answer)
        if answer.broken:
            return
