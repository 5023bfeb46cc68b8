"""Where a command's text goes: the terminal, or a file that is there whole or not at all."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files, require_writable


def add_report(parser: argparse.ArgumentParser) -> None:
    """--format and --output."""
    group = parser.add_argument_group("report")
    group.add_argument(
        "--format",
        choices=("table", "markdown", "csv", "json"),
        default="table",
        help="how the result is written (default: %(default)s)",
    )
    group.add_argument("--output", type=Path, metavar="FILE", help="write it there instead of to the terminal")


def check_output(*paths: Path | None) -> None:
    """Before any work: outputs that could not be written later."""
    targets = [path for path in paths if path is not None]
    for path in targets:
        require_writable(path)
    if len({os.path.realpath(path) for path in targets}) < len(targets):
        raise UsageError(f"two outputs go to one file: {', '.join(map(str, targets))}")


def publish(arguments: argparse.Namespace, text: str) -> None:
    """Print `text`, or write it to `--output`."""
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        replace_files({arguments.output: text.encode()})
