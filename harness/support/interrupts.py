"""Ctrl-C ends whatever the main thread waits for."""

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
"""Nobody sends it here, and it means nothing to whoever does not expect it."""
_DROPPED = bytes([0])
"""Among the numbers of signals: what Ctrl-C raised was dropped."""


def heed_interrupts() -> None:
    """From now on Ctrl-C raises `KeyboardInterrupt` in the main thread at once, even in a wait for a lock.

    Python handles a signal in the main thread, when that is next at work. The signal itself ends a wait for that, but
    not where another thread was given it, nor where it came just before the wait began. So a thread ends the wait with
    another signal, if Ctrl-C was not handled in a moment. And where Python drops what is raised, as in `__del__` and in
    the callback of a weak reference, it is raised again behind that. For the main thread to call, once.
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
    """SIGINT among the numbers of `signals`: send this thread another signal until it has handled that.

    What was dropped: send it SIGINT once more.
    """
    while True:
        numbers = os.read(signals, 512)
        if _DROPPED in numbers:
            time.sleep(_NUDGE_SECONDS)  # until it is out of there
            handled.clear()
            signal.pthread_kill(thread, signal.SIGINT)
        elif signal.SIGINT in numbers:
            for _ in range(_MOST_NUDGES):
                if handled.wait(_NUDGE_SECONDS):
                    break
                signal.pthread_kill(thread, _NUDGE)
            handled.clear()
