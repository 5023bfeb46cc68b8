"""The worker's side of a campaign: a process that examines the cases that come through a pipe, one after the other."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from harness.model.build import Build
from harness.model.case import Case
from harness.model.variant import Variant
from harness.options.machine import Machine
from harness.studies.fuzz.builds import builds_for
from harness.studies.fuzz.examination import examine
from harness.support.errors import SandboxError
from harness.support.exception_place import where_and_what

Load = Callable[[], Variant]
"""Makes the variant in a process of its own, so it has to be picklable: a function of a module, or a partial of one."""


def serve(connection: Connection, load: Load, machine: Machine, builds: tuple[Build, ...], log: Path) -> None:
    """Send what `builds` come to for the variant and what it takes, or why it cannot be had; then answer cases.

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
    connection.send((own_builds, variant.takes))
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
