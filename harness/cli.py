"""The command line: parse, run one command, and turn every mistake into one line and an exit status."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from harness.options.arguments import build_parser
from harness.options.exit_status import BROKEN_PIPE, FAILED, INTERRUPTED, WRONG_CALL
from harness.studies import COMMANDS
from harness.support.errors import SandboxError, UsageError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A user's mistake is one line on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a letter of some plugin's text is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    try:
        arguments = build_parser().parse_args(argv)
        status = COMMANDS[arguments.command](arguments)
        sys.stdout.flush()
        return status
    except SandboxError as error:
        print(f"harness: {error}", file=sys.stderr)
        return WRONG_CALL if isinstance(error, UsageError) else FAILED
    except MemoryError as error:
        print(f"harness: not enough memory for this problem: {error}", file=sys.stderr)
        return WRONG_CALL
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
