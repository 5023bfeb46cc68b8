"""How long to measure: the options of timing."""

from __future__ import annotations

import argparse

from harness.execution.timings import Effort
from harness.options.command import NUMBER, WHOLE_NUMBER
from harness.support.errors import UsageError


def add_effort(parser: argparse.ArgumentParser, seed: bool = True) -> None:
    """--seed, --noise, --seconds, --sustained."""
    default = Effort()
    group = parser.add_argument_group("timing")
    if seed:
        group.add_argument(
            "--seed", type=WHOLE_NUMBER, default=0, metavar="S", help="of inputs and order (default: %(default)s)"
        )
    group.add_argument(
        "--noise",
        type=NUMBER,
        default=100 * default.noise,
        metavar="PERCENT",
        help="run until half the 95 %% interval of each median is below this (default: %(default)s)",
    )
    group.add_argument(
        "--seconds",
        type=NUMBER,
        default=default.most_seconds,
        metavar="S",
        help="cold runs of one contender take at most so long (default: %(default)s)",
    )
    group.add_argument(
        "--sustained",
        type=NUMBER,
        default=default.sustained_seconds,
        metavar="S",
        help="then runs back to back for at least so long; 0 leaves them out (default: %(default)s)",
    )


def effort_of(arguments: argparse.Namespace) -> Effort:
    """How long to measure. Raises `UsageError` for what cannot be."""
    for option, least in (("noise", 0.0), ("seconds", 0.0), ("sustained", 0.0)):
        value = getattr(arguments, option)
        if not (least <= value < float("inf")):
            raise UsageError(f"--{option} is {value:g}; it has to be a number of at least {least:g}")
    return Effort(
        noise=arguments.noise / 100,
        most_seconds=arguments.seconds,
        sustained_seconds=arguments.sustained,
        seed=arguments.seed,
    )
