"""How inputs are drawn: the option --regime."""

from __future__ import annotations

import argparse

from harness.model.operation import Operation
from harness.options.command import add_epilog


def add_drawing(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """--regime, and what the operation's regimes are."""
    regimes = operation.regimes
    parser.add_argument_group("inputs").add_argument(
        "--regime",
        default=next(iter(regimes)),
        metavar="NAME",
        help="how values are drawn, see below (default: %(default)s)",
    )
    add_epilog(parser, "regimes", ((regime.name, regime.idea) for regime in regimes.values()))
