"""`python -m harness`."""

from __future__ import annotations

import os
import signal
import sys

# With `python -m` Python looks first in the folder that it was started in, where a file such as `queue.py` or `py.py`
# would hide a module that some library imports. Here it looks there last, as beside a plugin.
if not getattr(sys.flags, "safe_path", False):
    sys.path.append(sys.path.pop(0))

# Ctrl-C while libraries load: they turn an interrupt into errors of their own, so the process just ends. Then the
# command line sees to it.
interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# Threads that multiply matrices wait for the next product in a loop, by default for tens of milliseconds and on the
# cores that kernels run on. 2 to this power is for how many clock cycles; NumPy reads it when it is loaded.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")

from harness.execution.isolation.server import begin_server, end_strays, preload_compilers  # noqa: E402
from harness.support.process_tree import adopt_orphans  # noqa: E402

adopt_orphans()

if "--watch" in sys.argv:
    preload_compilers()  # planners come and go
if not {"-h", "--help"}.intersection(sys.argv) and sys.argv[1:2] != ["history"]:  # which runs no variant
    begin_server()  # it loads what planners begin with while this process loads the command line

from harness.cli import main  # noqa: E402
from harness.options.exit_status import INTERRUPTED  # noqa: E402
from harness.support.interrupts import heed_interrupts  # noqa: E402

if interruptible:
    heed_interrupts()
status = main()
end_strays()
if status == INTERRUPTED:
    # Python would wait for threads in which a compiler is at work, which cannot be stopped.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
sys.exit(status)
