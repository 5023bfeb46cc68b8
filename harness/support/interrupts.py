"""Ctrl-C ends whatever the main thread waits for."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

_NUDGE_SECONDS = 0.1
_MOST_NUDGES = 100
_NUDGE = signal.SIGURG
"""Nobody sends it here, and it means nothing to whoever does not expect it."""


def heed_interrupts() -> None:
    """From now on Ctrl-C raises `KeyboardInterrupt` in the main thread at once, even in a wait for a lock.

    Python handles a signal in the main thread, when that is next at work. The signal itself ends a wait for that, but
    not where another thread was given it, nor where it came just before the wait began. So a thread ends the wait with
    another signal, if Ctrl-C was not handled in a moment. For the main thread to call, once.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    handled = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> Any:
        handled.set()
        signal.default_int_handler(number, frame)

    signal.signal(_NUDGE, lambda number, frame: None)
    signal.signal(signal.SIGINT, interrupt)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    main = threading.main_thread().ident
    assert main is not None
    threading.Thread(target=_nudge, args=(main, read_end, handled), name="heed interrupts", daemon=True).start()


def _nudge(thread: int, signals: int, handled: threading.Event) -> None:
    """Whenever SIGINT is among the numbers of `signals`: send this thread another, until it has handled that."""
    while True:
        if signal.SIGINT not in os.read(signals, 512):
            continue
        for _ in range(_MOST_NUDGES):
            if handled.wait(_NUDGE_SECONDS):
                break
            signal.pthread_kill(thread, _NUDGE)
        handled.clear()
