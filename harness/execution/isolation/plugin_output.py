"""What plugins print, on its way to standard error: whoever writes it, nothing of it acts on the terminal."""

from __future__ import annotations

import codecs
import contextlib
import os
import sys
import threading
from multiprocessing.connection import Connection

from harness.support.printable import printable

MOST_CHARACTERS = 2**18
"""What one process may print. The rest is read, for it to go on, and left out."""
_LEFT_OUT = "\nharness: this plugin prints too much; the rest is left out\n"
_target: int | None = None


def print_on(descriptor: int) -> None:
    """Let what plugins print go to this descriptor, where standard error leads elsewhere."""
    global _target
    _target = descriptor


class PluginOutput:
    """What one process writes to its standard output and standard error, which both lead into one pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._thread = threading.Thread(target=self._relay, name="plugin output", daemon=True)
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Wait until all is printed of a process that has ended; not longer than this, should others hold its pipe."""
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
