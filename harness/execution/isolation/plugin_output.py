"""Relays the output of plugins to standard error, with control characters escaped for the terminal."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
from multiprocessing.connection import Connection

from harness.support.printable import printable

MOST_CHARACTERS = 2**18
"""Maximum characters printed for one process. The rest is read and discarded, so that the process does not block."""
_LEFT_OUT = "\nharness: this plugin prints too much; the rest is left out\n"
_target: int | None = None


def print_on(descriptor: int) -> None:
    """Redirect the output of plugins to this descriptor, for when standard error is used otherwise."""
    global _target
    _target = descriptor


class PluginOutput:
    """Relays the standard output and standard error of one process, which share one pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._thread = threading.Thread(target=self._relay, name="plugin output", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until the output of a process that has ended is printed.

        Waits at most `seconds`, because descendants of the process may still hold the pipe open.
        """
        self._thread.join(seconds)

    def _relay(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        left = MOST_CHARACTERS
        with self._pipe, contextlib.suppress(OSError, ValueError):
            while content := os.read(self._pipe.fileno(), 2**16):
                if left <= 0:
                    continue
                text = decoder.decode(content)
                left -= len(text)
                _print(printable(text) if left > 0 else printable(text[:left]) + _LEFT_OUT)


def _print(text: str) -> None:
    if _target is None:
        sys.stderr.write(text)
        sys.stderr.flush()
    else:
        os.write(_target, text.encode(errors="backslashreplace"))
