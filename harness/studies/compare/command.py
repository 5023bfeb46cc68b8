"""`compare`: every variant on one problem."""

from __future__ import annotations

import argparse

from harness.options.arguments import problem_of
from harness.options.choices import counter_of, discover_variants, sanitizing, tiled
from harness.options.exit_status import FAILED, PASSED
from harness.options.output import check_output, publish
from harness.support.errors import UsageError


def run_compare(arguments: argparse.Namespace) -> int:
    """Run `compare`; the exit status."""
    from harness.execution.comparison import compare, lost_row
    from harness.execution.tuned_tiles import with_tuned_tiles
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import render_comparison

    problem = problem_of(arguments)
    check_output(arguments.output)
    found = discover_variants(arguments)
    chosen = found.registry.select(arguments.variants)
    tile, chosen = tiled(arguments, chosen, problem)
    # Who asked for certain variants does not miss a broken module; who asked for all does.
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if arguments.variants is None else []
    if not chosen and not lost:
        raise UsageError("there are no variants; put one into variants/ or name a file with --plugin")
    with progress_bar(1 + len(chosen)) as progress:
        executor, sanitizer = sanitizing(arguments, progress)
        if tile is None:
            chosen = with_tuned_tiles(chosen, problem, executor.device)
        comparison = compare(
            chosen,
            problem,
            executor,
            regime=arguments.regime,
            seed=arguments.seed,
            counter=counter_of(arguments, problem, executor.device, progress),
            tile=tile,
            sanitizer=sanitizer,
            lost=lost,
            step=progress.step,
        )
    publish(arguments, render_comparison(comparison, arguments.format))
    return PASSED if comparison.all_passed else FAILED
