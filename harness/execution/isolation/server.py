"""The server that processes are forked from: started once, early, with all that every planner begins with.

A fork takes milliseconds, so one that died is soon replaced. No plugin's code ever runs in the server itself, nor a
compiler or CUDA, which do not survive a fork. What it forks has it for its own processes, too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from typing import TYPE_CHECKING, Any

from harness.support.processes.child_process import ONE_THREAD, environment, import_path
from harness.support.processes.privileges import protect_memory
from harness.support.processes.process_tree import end_children

if TYPE_CHECKING:
    from harness.model.variant import Variant

Load = Callable[[], "Variant"]
"""Makes a variant in whatever process it is called, so it has to be picklable: a function of a module, or a partial."""
PRELOADED = [
    "harness.execution.isolation.sealed_server",
    "harness.execution.isolation.planner",
    "harness.operations.attention.operation",
]
"""What the server has imported, in this order: every planner begins with it."""
COMPILERS = ("cupy", "numba.cuda")
"""What planners spend most of their start on."""
STARTING = threading.RLock()
"""Held while a process starts, which changes this one's environment for a moment: threads must not mix theirs up."""


def begin_server() -> ForkServerContext:
    """Start the server, if there is none, without waiting for it; what starts processes from it.

    From now on, no process of this user opens the memory of this one: see `protect_memory`.
    """
    protect_memory()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with STARTING, environment(import_path() | ONE_THREAD):
        forkserver.ensure_running()
    return context


def preload(*modules: str) -> None:
    """Let a server that has yet to start import these, too."""
    PRELOADED.extend(name for name in modules if name not in PRELOADED)


def preload_compilers() -> None:
    """Let a server that has yet to start import the compilers: worth a second where planners come and go."""
    preload(*COMPILERS)


@dataclass(frozen=True)
class Surroundings:
    """The environment and the folder of a process, for those it starts: the server's own are those of its start."""

    environment: dict[str, str]
    folder: str

    @staticmethod
    def of_this_process() -> Surroundings:
        """To hand over."""
        return Surroundings(dict(os.environ), os.getcwd())

    def take_on(self) -> None:
        """The first thing that a process does which was forked from the server."""
        os.environ.clear()
        os.environ.update(self.environment)
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            sys.dont_write_bytecode = True
        os.chdir(self.folder)
        _share_server()


def _share_server() -> None:
    """Processes that this one starts are forked from the server that forked it, for as long as that one lives.

    CPython means it so (says the docstring of `ensure_running`), but asks whether this process has started a server
    itself, and starts another.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if not getattr(server, "_forkserver_address", None) or not getattr(server, "_forkserver_authkey", True):
        return  # a CPython that keeps it elsewhere
    parent, start_another = os.getppid(), server.ensure_running

    def ensure_running() -> None:
        if os.getppid() != parent:
            start_another()

    server.ensure_running = ensure_running
    setattr(forkserver, "ensure_running", ensure_running)  # noqa: B010 - which is that method, bound


def leave_server() -> None:
    """Close what this process holds of its server: whoever writes there ends it for all others.

    Processes that this one starts are forked from a server of its own.
    """
    for one, names in (
        (getattr(forkserver, "_forkserver", None), ("_forkserver_alive_fd", "_forkserver_address")),
        (getattr(resource_tracker, "_resource_tracker", None), ("_fd",)),
    ):
        descriptor = getattr(one, names[0], None)
        if descriptor is not None:
            os.close(descriptor)
            for name in names:
                setattr(one, name, None)


def enter(*arguments: Any) -> None:
    """What a planner runs: `planner.serve`, which the judge need not import."""
    from harness.execution.isolation.planner import serve

    serve(*arguments)


def end_strays() -> None:
    """End children of this process that it did not start: what a plugin has left, which ended its own supervisor.

    They come here only where this process adopts orphans (`adopt_orphans`).
    """
    ours = (getattr(forkserver, "_forkserver", None), getattr(resource_tracker, "_resource_tracker", None))
    end_children(
        spared=[pid for one in ours for name in ("_forkserver_pid", "_pid") if (pid := getattr(one, name, None))]
    )
