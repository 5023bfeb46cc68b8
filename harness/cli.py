"""The command line: parse, run one command, and turn every mistake into one line and an exit status."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from harness.execution.isolation.process import end_planners
from harness.model.operation import DEFAULT_OPERATION, operation_named
from harness.options.command import OneLineParser
from harness.options.exit_status import BROKEN_PIPE, FAILED, INTERRUPTED, WRONG_CALL
from harness.studies.commands import COMMANDS
from harness.support.errors import SandboxError, UsageError


def build_parser(operation: str = DEFAULT_OPERATION) -> argparse.ArgumentParser:
    """All commands and options, each with help. Raises `UsageError` where there is no such operation."""
    chosen = operation_named(operation)
    parser = OneLineParser(
        prog="python -m harness",
        description="Attention kernels, compared: is the answer right, how many bytes does it move, how fast is it.",
        epilog="Exit status: 0 all that ran passed, 1 a variant failed, 2 the call was wrong.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        description = f"{command.help[0].upper()}{command.help[1:]}."
        sub = commands.add_parser(command.name, help=command.help, description=description, allow_abbrev=False)
        command.add_options(sub, chosen)
        sub.set_defaults(run=command.run)
    return parser


def _operation_asked_for(words: Sequence[str]) -> str:
    """What --operation names, read before all else: the other options follow from it."""
    early = OneLineParser(add_help=False, allow_abbrev=False)
    early.add_argument("--operation", default=DEFAULT_OPERATION)
    name: str = early.parse_known_args(words)[0].operation
    return name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. A user's mistake is one line on stderr, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that lacks a letter of some plugin's text is no reason to stop.
            stream.reconfigure(errors="backslashreplace")
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        arguments = build_parser(_operation_asked_for(words)).parse_args(words)
        status: int = arguments.run(arguments)
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
    finally:
        end_planners()
