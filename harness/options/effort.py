"""Options that control how long a kernel is timed."""

from __future__ import annotations

import argparse
from dataclasses import replace

from harness.execution.run_settings import Effort, RunSettings
from harness.options.command import NUMBER, WHOLE_NUMBER
from harness.support.errors import UsageError


def add_effort(parser: argparse.ArgumentParser, seed: bool = True) -> None:
    """Add --seed, --noise, --seconds and --sustained."""
    group = parser.add_argument_group("timing")
    if seed:
        group.add_argument(
            "--seed",
            type=WHOLE_NUMBER,
            metavar="S",
            help=f"selects inputs and the order of runs (default: {RunSettings.seed})",
        )
    group.add_argument(
        "--noise",
        type=NUMBER,
        default=100 * Effort.noise,
        metavar="PERCENT",
        help="run until the half-width of the 95 %% confidence interval of each median is below this percentage "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--seconds",
        type=NUMBER,
        default=Effort.most_seconds,
        metavar="S",
        help="time limit in seconds for the cold-cache runs of each variant, tile or library kernel (default: "
        "%(default)s)",
    )
    group.add_argument(
        "--sustained",
        type=NUMBER,
        default=Effort.sustained_seconds,
        metavar="S",
        help="after the cold-cache runs, run each of them back to back for at least S seconds; 0 skips this "
        "(default: %(default)s)",
    )


def read_effort(arguments: argparse.Namespace) -> Effort:
    """Read how long to measure. Raises `UsageError` for invalid values."""
    words = vars(arguments)
    effort = Effort(seed=words.get("seed") or RunSettings.seed)
    if "noise" not in words:
        return effort
    noise, seconds, sustained = (_at_least_zero(option, words[option]) for option in ("noise", "seconds", "sustained"))
    return replace(effort, noise=noise / 100, most_seconds=seconds, sustained_seconds=sustained)


def _at_least_zero(option: str, value: float) -> float:
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"--{option} is {value:g}; it has to be a number of at least 0")
    return value
