"""Entry point of `python -m harness`."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys

# With `python -m` Python puts the current folder first on the path, where a file such as `queue.py` or `py.py` would
# shadow a module that a library imports. Here it is moved to the end, as for a plugin's folder.
if not getattr(sys.flags, "safe_path", False):
    sys.path.append(sys.path.pop(0))

# Ctrl-C during the import of libraries, which turn an interrupt into errors of their own, just ends the process. After
# that the command line handles it.
interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# Threads of a BLAS spin while they wait for the next matrix product, by default for tens of milliseconds and on the
# cores that kernels run on. This is the base-2 logarithm of the spin time in clock cycles; NumPy's BLAS reads it when
# it is loaded.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

from harness.execution.isolation.server import begin_server, end_strays, preload_compilers  # noqa: E402
from harness.support.processes.process_tree import adopt_orphans  # noqa: E402

adopt_orphans()

if "--watch" in sys.argv:
    preload_compilers()  # planners come and go
runs_variants = sys.argv[1:2] not in (["history"], ["emulate"])
if runs_variants and not {"-h", "--help"}.intersection(sys.argv):
    begin_server()  # it loads what planners begin with while this process loads the command line

from harness.cli import main  # noqa: E402
from harness.options.exit_status import INTERRUPTED  # noqa: E402
from harness.support.processes.interrupts import heed_interrupts  # noqa: E402

if interruptible:
    heed_interrupts()
status = main()
end_strays()
if status != INTERRUPTED:
    atexit._run_exitfuncs()
# Python would first destroy every object, which takes a twentieth of a second, and wait for threads that run a
# compiler, which cannot be stopped.
for stream in (sys.stdout, sys.stderr):
    if stream is not None:  # None: the shell has closed it
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
os._exit(status)
