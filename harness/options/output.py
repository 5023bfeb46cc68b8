"""Writes a command's text to the terminal, or atomically to a file."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.execution.results.place import keeps_always
from harness.options.command import add_fields_of, flag, option
from harness.options.exit_status import FAILED, PASSED, require_something_ran
from harness.options.keep import keep_result
from harness.options.standard_streams import print_result, print_styled
from harness.support.errors import UsageError
from harness.support.file_replacement import path_to_show, replace_files, require_writable
from harness.support.printable import printable
from harness.text.terminal import ColourChoice, terminal_of

if TYPE_CHECKING:
    from harness.text.report import Report
    from harness.text.study_result import StudyResult


@dataclass(frozen=True)
class ReportOptions:
    """How a result is written, and whether it is stored."""

    format: str = option(
        None,
        "format of the result (default: table)",
        choices=("table", "markdown", "csv", "json"),
        default="table",
    )
    output: Path | None = option("FILE", "write the result to this file instead of the terminal", type=Path)
    color: ColourChoice = option(
        None, "colour verdicts; auto: only on a terminal, unless NO_COLOR or FORCE_COLOR is set",
        choices=("auto", "always", "never"), default="auto",
    )  # fmt: skip
    explain: bool = flag("explain every column of the tables, below the output")
    keep: bool | None = None
    """Whether the result is stored; None if the command has nothing to store."""

    @property
    def is_kept(self) -> bool:
        """Whether the option or the environment requests storing. Raises `UsageError` for an invalid variable."""
        return self.keep is not None and (keeps_always() or self.keep)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add --format, --output, --color and --explain."""
    add_fields_of(ReportOptions, parser.add_argument_group("report"), "format", "output", "color", "explain")


def check_output(*paths: Path | None, inputs: Iterable[Path] = ()) -> None:
    """Raise `UsageError` for outputs that cannot be written, or that would overwrite an input. Call before any work."""
    targets = [path for path in paths if path is not None]
    for path in targets:
        require_writable(path)
    if len({os.path.realpath(path) for path in targets}) < len(targets):
        raise UsageError(f"two outputs go to one file: {', '.join(map(str, targets))}")
    read = {os.path.realpath(path) for path in inputs}
    for path in targets:
        if os.path.realpath(path) in read:
            raise UsageError(f"{path} is an input, and would be overwritten; name another file for the output")


def conclude(report: ReportOptions, shown: StudyResult[Any]) -> int:
    """Publish a study's result and store it if requested. Returns the exit status.

    Raises `UsageError` if nothing ran, which must not count as passed, or if the result cannot be stored.
    """
    publish(report, shown.report)
    keep_result(report, shown)
    require_something_ran(shown.ran)
    return PASSED if shown.passed else FAILED


def tell_written(report: ReportOptions, *paths: Path | None) -> None:
    """Name the files that were written, such as plots, on standard output, unless it carries data for programs."""
    if report.output is not None or report.format in ("table", "markdown"):
        print_result("".join(f"Wrote {path_to_show(path)}.\n" for path in paths if path is not None))


def publish(report: ReportOptions, shown: Report | str) -> None:
    """Print a report or a text, or write it to `--output`. Unprintable characters are escaped."""
    if report.output is not None:
        text = shown if isinstance(shown, str) else shown.render(report.format, explain=report.explain)
        replace_files({report.output: printable(text).encode()})
    elif isinstance(shown, str):
        print_result(shown)
    else:
        print_styled(shown.render(report.format, terminal_of(sys.stdout, report.color), report.explain))
