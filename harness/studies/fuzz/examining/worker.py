"""The worker's side of a campaign: a process that examines cases received through a pipe, one after the other."""

from __future__ import annotations

import gc
import os
import time
from multiprocessing.connection import Connection

from harness.execution.isolation.plugin_output import print_on
from harness.execution.isolation.process import end_planners
from harness.execution.isolation.server import Load
from harness.execution.isolation.variants import isolate
from harness.execution.isolation.worker_process import attach
from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.options.machine import Machine
from harness.studies.fuzz.drawing.builds import builds_for
from harness.studies.fuzz.examining.examination import examine
from harness.support.errors import SandboxError
from harness.support.exception_place import where_and_what
from harness.support.processes.child_process import LOOK_SECONDS, ProcessLog

IN_PROGRESS = "in progress"
"""Sent now and then during a case whose kernel's thread blocks keep finishing."""


def serve(
    connection: Connection,
    log: ProcessLog,
    load: Load,
    machine: Machine,
    builds: tuple[Build, ...],
) -> None:
    """Send the variant's properties, or why it cannot be loaded; then answer cases until the pipe closes.

    The properties are its supported builds among `builds`, the features that it supports, and the regimes in which it
    declares that it fails. During a long case, `IN_PROGRESS` may be sent several times before the answer.

    This process's standard output and error go to `log`, which has its last output if it dies. The variant's prints go
    to standard error, by way of `plugin_output`.
    """
    print_on(os.dup(2))
    attach(log, end_planners)
    tell = _ProgressReporter(connection)
    try:
        variant, executor, sanitizer = isolate(load), machine.executor(tell), machine.sanitizer(tell)
        own_builds = builds_for(variant, builds)
    except Exception as error:
        connection.send(str(error) if isinstance(error, SandboxError) else where_and_what(error))
        end_planners()
        return
    gc.freeze()  # existing objects persist, so garbage collection need not visit them
    connection.send((own_builds, variant.takes, variant.fails_in))
    while True:
        try:
            case = connection.recv()
        except EOFError:
            break
        assert isinstance(case, Case)
        looks_on = machine.settings.sanitize or case.check == SANITIZER
        answer = examine(case, variant, executor, sanitizer if looks_on else None)
        connection.send(answer)
        if answer.broken:
            break
    end_planners()


class _ProgressReporter:
    """Sends `IN_PROGRESS` if progress was made since the last call, at a limited rate."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._done = 0.0
        self._reported_at = time.monotonic()

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if done != self._done and now > self._reported_at + LOOK_SECONDS:
            self._done, self._reported_at = done, now
            self._connection.send(IN_PROGRESS)
