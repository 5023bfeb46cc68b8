"""`python -m harness`."""

from __future__ import annotations

import signal
import sys

# Ctrl-C while libraries load: they turn an interrupt into errors of their own, so the process just ends. Then the
# command line sees to it.
interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if interruptible:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from harness.cli import main  # noqa: E402

if interruptible:
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
