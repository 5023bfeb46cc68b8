"""`list`: the registered variants."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.model.operation import DEFAULT_OPERATION, Operation, operation_named, operation_names
from harness.model.variant import Registry, Variant
from harness.options.command import Command, add_fields_of, flag
from harness.options.exit_status import PASSED
from harness.options.output import add_report, check_output, publish
from harness.options.request import Request
from harness.options.variants import add_plugins, add_selection

if TYPE_CHECKING:
    from harness.text.report import Report


@dataclass(frozen=True, kw_only=True)
class ListRequest(Request):
    """The options of `list`."""

    regimes: bool = flag("list the regimes of inputs instead, for the option --regime of other commands")


def variants_report(variants: Sequence[Variant], registry: Registry) -> Report:
    """The report of the registered variants."""
    keys = ("name", "algorithm", "backend", "idea")
    listing = [
        {key: getattr(v, key) for key in keys} | {"origin": registry.origin_of(v.name), "operation": v.operation}
        for v in variants
    ]
    return _report(listing, keys, (*keys, "origin", "operation"), {"variants": listing})


def regimes_report(operation: Operation) -> Report:
    """The report of the operation's regimes of inputs."""
    keys = ("regime", "idea")
    listing = [{"regime": regime.name, "idea": regime.idea} for regime in operation.regimes.values()]
    return _report(listing, keys, keys, {"operation": operation.name, "regimes": listing})


def _report(
    listing: Sequence[Mapping[str, str]], shown: Sequence[str], keys: Sequence[str], document: Mapping[str, object]
) -> Report:
    """A table of the `shown` keys, records of all `keys`, and the document for JSON."""
    from harness.text.report import Report, Table

    return Report(
        paragraphs=lambda: [Table(shown, [[entry[key] for key in shown] for entry in listing], [False] * len(shown))],
        notes=lambda: [],
        records=lambda: (listing, keys),
        document=lambda: document,
    )


def run_list(request: ListRequest) -> int:
    """Run `list`, and return the exit status."""
    check_output(request.report.output)
    if request.regimes:
        operation = operation_named(request.operation or DEFAULT_OPERATION)
        publish(request.report, regimes_report(operation))
        return PASSED
    registry = request.discover().registry
    chosen = registry.select(request.selection.variants, request.operation)
    publish(request.report, variants_report(chosen, registry))
    return PASSED


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `list`."""
    parser.add_argument(
        "--operation",
        metavar="NAME",
        help=f"variants of one operation only: {', '.join(operation_names())} (default: of all)",
    )
    add_fields_of(ListRequest, parser, "regimes")
    add_selection(parser)
    add_plugins(parser)
    add_report(parser)


COMMAND = Command(
    "list",
    "list the registered variants: name, algorithm, backend, idea",
    add_options,
    ListRequest,
    run_list,
    examples=(
        ("", "List the variants of all operations."),
        ("--variants 'fa*' --format json", "List some of them as JSON."),
        ("--regimes", "List the regimes of inputs for --regime."),
    ),
)
