"""Standard input, output and error as a shell may leave them: closed, full, or with nobody who reads."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys

from harness.support.errors import UsageError
from harness.support.printable import printable

CLEAR_SCREEN = "\x1b[2J\x1b[3J\x1b[H"
_SHOWN = 80
_LONG_WORD = re.compile(r"\S{300,}")


def prepare_streams() -> None:
    """Before all else: closed descriptors lead nowhere, so that no file that is opened later takes their numbers."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a letter of some plugin's text is no reason to stop.
            stream.reconfigure(errors="backslashreplace")


def print_result(text: str) -> None:
    """Write to standard output and flush it; what is not printable is escaped (`printable`).

    Raises `UsageError` where it cannot be written.
    """
    _write(printable(text))


def clear_screen() -> None:
    """Clear the terminal that standard output is. Raises `UsageError` where it cannot be written."""
    _write(CLEAR_SCREEN)


def _write(text: str) -> None:
    if sys.stdout is None:
        if not text:
            return
        raise UsageError("standard output is closed; open it, or write to a file with --output FILE")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise UsageError(f"cannot write to standard output: {error.strerror}") from error


def complain(message: str) -> None:
    """Say what is wrong on standard error, if anybody reads it; endless words are cut, the unprintable is escaped."""
    cut = printable(_LONG_WORD.sub(lambda word: f"{word[0][:_SHOWN]}...", message))
    with contextlib.suppress(OSError):
        print(f"harness: {cut}", file=sys.stderr, flush=True)


def discard_output() -> None:
    """What is left of the output leads nowhere: Python would complain once more when it flushes it at exit."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
