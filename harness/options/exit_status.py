"""Exit statuses of every command. The last two are a shell's for SIGINT and SIGPIPE."""

from __future__ import annotations

import argparse

from harness.support.errors import UsageError

PASSED, FAILED, WRONG_CALL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def require_something_ran(ran: bool) -> None:
    """After the report: raise `UsageError` where no variant took the problem, for nothing that ran is no pass."""
    if not ran:
        raise UsageError("nothing ran: no variant takes this problem; the report says why. Change it, or --variants")


def add_allow_undecided(parser: argparse.ArgumentParser) -> None:
    """--allow-undecided."""
    parser.add_argument(
        "--allow-undecided",
        action="store_true",
        help="exit with 0 where a verdict is `undecided`, see docs/columns.md (default: with 1)",
    )
