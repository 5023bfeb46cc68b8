"""Makes Ctrl-C interrupt any wait of the main thread."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

_NUDGE_SECONDS = 0.1
_MOST_NUDGES = 100
_NUDGE = signal.SIGURG
"""A signal that is not otherwise used here and that processes ignore by default."""
_DROPPED = bytes([0])
"""Written to the pipe of signal numbers if the exception of Ctrl-C was dropped."""


def heed_interrupts() -> None:
    """Make Ctrl-C raise `KeyboardInterrupt` in the main thread at once, even while it waits for a lock.

    Python handles a signal when the main thread next executes bytecode. The signal itself interrupts a wait, unless the
    system delivered it to another thread, or just before the wait began. So if Ctrl-C is not handled promptly, a thread
    interrupts the wait with another signal. If Python drops the exception, as in `__del__` and in weak reference
    callbacks, it is raised again afterwards. Call this once, in the main thread.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    handled = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> Any:
        handled.set()
        signal.default_int_handler(number, frame)

    tell_dropped = sys.unraisablehook

    def dropped(what: sys.UnraisableHookArgs) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            os.write(write_end, _DROPPED)
        else:
            tell_dropped(what)

    sys.unraisablehook = dropped
    signal.signal(_NUDGE, lambda number, frame: None)
    signal.signal(signal.SIGINT, interrupt)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    main = threading.main_thread().ident
    assert main is not None
    threading.Thread(target=_nudge, args=(main, read_end, handled), name="heed interrupts", daemon=True).start()


def _nudge(thread: int, signals: int, handled: threading.Event) -> None:
    """When SIGINT arrives on `signals`, send the thread another signal until it has handled it.

    If the exception was dropped, send SIGINT again.
    """
    while True:
        numbers = os.read(signals, 512)
        if _DROPPED in numbers:
            time.sleep(_NUDGE_SECONDS)  # until the main thread has left the wait
            handled.clear()
            signal.pthread_kill(thread, signal.SIGINT)
        elif signal.SIGINT in numbers:
            for _ in range(_MOST_NUDGES):
                if handled.wait(_NUDGE_SECONDS):
                    break
                signal.pthread_kill(thread, _NUDGE)
            handled.clear()
