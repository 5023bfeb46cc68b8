"""Starts the fork server, which is started once and has imported what every planner needs.

A fork takes milliseconds, so a planner that died is replaced quickly. The server never runs the code of a plugin, and
never initializes a compiler or CUDA, which do not survive a fork. All processes that it forks share this state.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.support.processes.child_process import ONE_THREAD, environment, import_path
from harness.support.processes.privileges import protect_memory
from harness.support.processes.process_tree import end_children

if TYPE_CHECKING:
    from harness.model.variant import Variant

Load = Callable[[], "Variant"]
"""Function that creates a variant in another process. It must be picklable: a module's function, or a partial of
one."""
PRELOADED = [
    "harness.execution.isolation.planner",
    "harness.operations.attention.operation",
]
"""Modules that the server imports, in this order, so that all planners have them loaded."""
PRELOAD_VARIABLE = "ATTENTION_SANDBOX_PRELOAD"
"""Environment variable of the server with their names. The server itself would ignore an `ImportError`, and end with
any other exception."""
COMPILERS = ("cupy", "numba.cuda")
"""Packages whose import takes most of a planner's start."""
LONGEST_SOCKET_FOLDER = 70
"""Largest length of a temporary folder in bytes. A socket's path has at most 107, of which Python adds up to 33."""
STARTING = threading.RLock()
"""Lock held while a process starts, because starting changes this process's environment temporarily."""


def begin_server() -> ForkServerContext:
    """Start the server if it is not running, without waiting for it. Returns the context that starts processes from it.

    From then on, other processes of this user cannot access the memory of this one (`protect_memory`).
    """
    protect_memory()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.execution.isolation.sealed_server"])
    variables = import_path() | ONE_THREAD | {PRELOAD_VARIABLE: " ".join(PRELOADED)}
    with STARTING, environment(variables), _room_for_a_socket():
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _room_for_a_socket() -> Iterator[None]:
    """Use /tmp for temporary files if the path of a socket in the temporary folder would be too long for Linux."""
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_SOCKET_FOLDER:
        tempfile.tempdir = "/tmp"
    try:
        yield
    finally:
        tempfile.tempdir = before


def preload(*modules: str) -> None:
    """Add modules to those that the server imports. Has no effect on a server that is running."""
    PRELOADED.extend(name for name in modules if name not in PRELOADED)


def preload_compilers() -> None:
    """Make a server that is not running yet import the compilers. Saves a second for each planner."""
    preload(*COMPILERS)


@dataclass(frozen=True)
class Surroundings:
    """Environment and working directory of a process, applied to the processes that it starts.

    Without them, a forked process would have the environment and working directory of the server.
    """

    environment: dict[str, str]
    folder: str

    @staticmethod
    def of_this_process(variables: Mapping[str, str] = MappingProxyType({})) -> Surroundings:
        """Capture those of this process, with these environment variables added."""
        return Surroundings({**os.environ, **variables}, os.getcwd())

    def take_on(self) -> None:
        """Apply them to this process. Called first in each process that the server forked."""
        os.environ.clear()
        os.environ.update(self.environment)
        if os.environ.get("PYTHONDONTWRITEBYTECODE"):
            sys.dont_write_bytecode = True
        os.chdir(self.folder)
        _share_server()


def _share_server() -> None:
    """Make processes that this one starts come from the server that forked it, as long as that server lives.

    The docstring of CPython's `ensure_running` describes this behaviour. However, CPython checks only whether this
    process itself started a server, and if not, starts another one.
    """
    server: Any = getattr(forkserver, "_forkserver", None)
    if not getattr(server, "_forkserver_address", None) or not getattr(server, "_forkserver_authkey", True):
        return  # a CPython version with other attribute names
    parent, start_another = os.getppid(), server.ensure_running

    def ensure_running() -> None:
        if os.getppid() != parent:
            start_another()

    server.ensure_running = ensure_running
    setattr(forkserver, "ensure_running", ensure_running)  # noqa: B010 - which is that method, bound


def leave_server() -> None:
    """Close this process's connections to its server, since writing to them can end it for all processes.

    Processes that this one starts are then forked from a new server.
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
    """Run `planner.serve` in a planner, so that the judge does not have to import that module."""
    from harness.execution.isolation.planner import serve

    serve(*arguments)


def end_strays() -> None:
    """End children of this process that it did not start: processes of a plugin that killed its own supervisor.

    They become children of this process only if it adopts orphans (`adopt_orphans`).
    """
    ours = (getattr(forkserver, "_forkserver", None), getattr(resource_tracker, "_resource_tracker", None))
    end_children(
        spared=[pid for one in ours for name in ("_forkserver_pid", "_pid") if (pid := getattr(one, name, None))]
    )
