"""The worker's side of a campaign: a process that examines the cases that come through a pipe, one after the other."""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import signal
import threading
import time
from multiprocessing.connection import Connection

from harness.execution.isolation.plugin_output import print_on
from harness.execution.isolation.process import end_planners
from harness.execution.isolation.server import Load, Surroundings
from harness.execution.isolation.variants import isolate
from harness.model.build import Build
from harness.model.case import Case
from harness.model.property import SANITIZER
from harness.options.machine import Machine
from harness.studies.fuzz.builds import builds_for
from harness.studies.fuzz.examination import examine
from harness.support.child_process import LOOK_SECONDS, ProcessLog
from harness.support.errors import SandboxError
from harness.support.exception_place import where_and_what

IN_PROGRESS = "in progress"
"""Said while a case is examined, now and then, of a kernel whose thread blocks end one after the other."""


def serve(
    connection: Connection,
    load: Load,
    log: ProcessLog,
    surroundings: Surroundings,
    machine: Machine,
    builds: tuple[Build, ...],
) -> None:
    """Tell about the variant, or why it cannot be had; then receive cases and send answers, until the pipe ends.

    What is told: what `builds` come to for it, the features that it takes, and the regimes in which it declares that
    it fails. Before the answer to a case that takes long, there may be `IN_PROGRESS`, several times.

    What this process writes to standard output or error goes to `log`: the last words of a process that dies. What the
    variant prints goes to standard error, by way of `plugin_output`.
    """
    # Ctrl-C is for the parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    surroundings.take_on()
    print_on(os.dup(2))
    descriptor = log.begin()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.enable()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tell = _ProgressTeller(connection)
    try:
        variant, executor, sanitizer = isolate(load), machine.executor(tell), machine.sanitizer(tell)
        own_builds = builds_for(variant, builds)
    except Exception as error:
        connection.send(str(error) if isinstance(error, SandboxError) else where_and_what(error))
        end_planners()
        return
    gc.freeze()  # what is here by now stays: no collection need look through it
    connection.send((own_builds, variant.takes, variant.fails_in))
    while True:
        try:
            case = connection.recv()
        except EOFError:
            break
        assert isinstance(case, Case)
        looks_on = machine.sanitize or case.check == SANITIZER
        answer = examine(case, variant, executor, sanitizer if looks_on else None)
        connection.send(answer)
        if answer.broken:
            break
    end_planners()


class _ProgressTeller:
    """Says `IN_PROGRESS` where more is done than when it was called before, but not all the time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._done = 0.0
        self._told = time.monotonic()

    def __call__(self, done: float) -> None:
        now = time.monotonic()
        if done != self._done and now > self._told + LOOK_SECONDS:
            self._done, self._told = done, now
            self._connection.send(IN_PROGRESS)


def _end_with_parent() -> None:
    """Whoever started this process may be killed while it is at a long case, and then nobody waits for it."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
