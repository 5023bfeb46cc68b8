"""`list`: the registered variants."""

from __future__ import annotations

import argparse

from harness.model.operation import Operation, operation_names
from harness.options.command import Command
from harness.options.exit_status import PASSED
from harness.options.output import add_report, check_output, publish
from harness.options.request import Request
from harness.options.variants import add_plugins, add_selection


def run_list(request: Request) -> int:
    """Run `list`; the exit status."""
    from harness.text.listing_report import render_listing

    check_output(request.report.output)
    registry = request.discover().registry
    chosen = registry.select(request.selection.variants, request.operation)
    publish(request.report, render_listing(chosen, registry, request.report.format))
    return PASSED


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `list`."""
    parser.add_argument(
        "--operation",
        metavar="NAME",
        help=f"variants of one operation only: {', '.join(operation_names())} (default: of all)",
    )
    add_selection(parser)
    add_plugins(parser)
    add_report(parser)


COMMAND = Command(
    "list",
    "the registered variants: name, algorithm, backend, idea",
    add_options,
    Request,
    run_list,
)
