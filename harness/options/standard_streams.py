"""Handles standard input, output and error that a shell has closed, whose reader has ended, or whose disk is full."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from textwrap import fill

from harness.support.errors import UsageError
from harness.support.printable import printable
from harness.text.terminal import terminal_of

CLEAR_SCREEN = "\x1b[2J\x1b[3J\x1b[H"
_SHOWN = 80
_COLOUR = re.compile("(\x1b\\[[0-9;]*m)")
_LONG_WORD = re.compile(r"\S{300,}")


def prepare_streams() -> None:
    """Open closed standard descriptors on /dev/null, so that files opened later do not get their numbers.

    Call this before anything else.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Escape characters that the terminal's encoding lacks instead of raising an error.
            stream.reconfigure(errors="backslashreplace")


def print_result(text: str) -> None:
    """Write to standard output and flush it. Unprintable characters are escaped (`printable`).

    Raises `UsageError` if it cannot be written.
    """
    _write(printable(text))


def print_styled(text: str) -> None:
    """Write text with colours to standard output and flush it. Other unprintable characters are escaped.

    Raises `UsageError` if it cannot be written.
    """
    _write("".join(part if _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(text)))


def clear_screen() -> None:
    """Clear the terminal on standard output. Raises `UsageError` if it cannot be written."""
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
    """Print a message on standard error, if possible. Long words are cut and unprintable characters escaped."""
    cut = printable(_LONG_WORD.sub(lambda word: f"{word[0][:_SHOWN]}...", message))
    text, width = f"harness: {cut}", terminal_of(sys.stderr).width
    if width is not None:
        text = "\n".join(fill(line, width, break_on_hyphens=False) for line in text.splitlines())
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def discard_output() -> None:
    """Redirect the remaining output to /dev/null. Otherwise Python reports another error when it flushes at exit."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
