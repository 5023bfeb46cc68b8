"""Exit statuses of all commands. The last two are those of a shell for SIGINT and SIGPIPE."""

from __future__ import annotations

import argparse

from harness.support.errors import UsageError

PASSED, FAILED, WRONG_CALL, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141


def require_something_ran(ran: bool) -> None:
    """Raise `UsageError` if no variant supported the problem, because a run without results must not count as passed.

    Call it after the report was written.
    """
    if not ran:
        raise UsageError(
            "nothing ran: no variant supports this problem; the report states the reasons. "
            "Change the problem or --variants"
        )


def add_allow_undecided(parser: argparse.ArgumentParser) -> None:
    """Add --allow-undecided."""
    parser.add_argument(
        "--allow-undecided",
        action="store_true",
        help="exit with status 0 instead of 1 if a verdict is 'undecided'; see docs/columns.md",
    )
