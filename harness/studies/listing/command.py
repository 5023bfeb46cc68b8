"""`list`: the registered variants."""

from __future__ import annotations

import argparse

from harness.options.choices import discover_variants
from harness.options.exit_status import PASSED
from harness.options.output import check_output, publish


def run_list(arguments: argparse.Namespace) -> int:
    """Run `list`; the exit status."""
    from harness.text.comparison_report import render_listing

    check_output(arguments.output)
    registry = discover_variants(arguments).registry
    chosen = registry.select(arguments.variants)
    publish(arguments, render_listing(chosen, registry, arguments.format))
    return PASSED
