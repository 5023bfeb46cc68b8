"""The server that planners are forked from: started once, early, with all that every planner begins with.

A fork takes milliseconds, so a planner that died is soon replaced. No plugin's code ever runs in the server itself, nor
a compiler or CUDA, which do not survive a fork.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.support.child_process import one_thread_for_numpy

if TYPE_CHECKING:
    from harness.model.variant import Variant

Load = Callable[[], "Variant"]
"""Makes a variant in whatever process it is called, so it has to be picklable: a function of a module, or a partial."""
PRELOADED = ["harness.execution.isolation.planner", "harness.operations.attention.problem"]
"""What the server has imported: every planner begins with it."""
COMPILERS = ("cupy", "numba.cuda")
"""What planners spend most of their start on."""
STARTING = threading.RLock()
"""Held while a process starts, which changes this one's environment for a moment: threads must not mix theirs up."""
_ROOT = str(Path(__file__).resolve().parents[3])


def begin_server() -> ForkServerContext:
    """Start the server, if there is none, without waiting for it; what starts processes from it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with STARTING, one_thread_for_numpy(), _found_from_anywhere():
        forkserver.ensure_running()
    return context


def preload_compilers() -> None:
    """Let a server that has yet to start import what compiles, too: worth a second where planners come and go."""
    PRELOADED.extend(name for name in COMPILERS if name not in PRELOADED)


def enter(*arguments: Any) -> None:
    """What a planner runs: `planner.serve`, which the judge need not import."""
    from harness.execution.isolation.planner import serve

    serve(*arguments)


@contextlib.contextmanager
def _found_from_anywhere() -> Iterator[None]:
    """The server imports the harness wherever this process was started: it does not look at this one's `sys.path`."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([_ROOT, *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
