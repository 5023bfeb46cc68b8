"""`compare`: every variant on one problem."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.model.operation import Operation
from harness.options.command import Command
from harness.options.device import add_device, add_sanitizer, counter_of, sanitizing
from harness.options.inputs import add_drawing
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude
from harness.options.problem import add_problem, problem_of
from harness.options.variants import add_plugins, add_selection, add_tile, discover_variants, require_some, tiled
from harness.options.watch import add_watch, kept_results, watching

if TYPE_CHECKING:
    from harness.execution.outcome import Comparison
    from harness.text.study_result import StudyResult


def run_compare(arguments: argparse.Namespace) -> int:
    """Run `compare`; the exit status."""
    check_output(arguments.output)
    return watching(arguments, lambda asked: conclude(asked, compare_variants(asked)))


def compare_variants(arguments: argparse.Namespace) -> StudyResult[Comparison]:
    """What `compare` comes to."""
    from harness.execution.comparison import compare, lost_row
    from harness.execution.isolation.variants import begin_planners
    from harness.execution.results.rows import comparison_rows
    from harness.execution.second_draw import SecondDraw
    from harness.execution.tuned_tiles import with_tuned_tiles
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import comparison_report
    from harness.text.study_result import StudyResult

    problem = problem_of(arguments)
    found = discover_variants(arguments)
    chosen = found.registry.select(arguments.variants, arguments.operation)
    kept = kept_results(arguments)
    known = kept.known(variant.name for variant in chosen)
    begin_planners(variant for variant in chosen if variant.name not in known)
    tile, chosen = tiled(arguments, chosen, problem)
    # Who asked for certain variants does not miss a broken module; who asked for all does.
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if arguments.variants is None else []
    require_some((*chosen, *lost))
    with progress_bar(1 + len(chosen) - len(known)) as progress:
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
            second=SecondDraw(problem, arguments.regime),
            lost=lost,
            known=known,
            step=progress.step,
        )
    names = {variant.name for variant in chosen}
    kept.keep(found, {row.variant: row for row in comparison.rows if row.variant in names})
    passed, ran = comparison.all_passed, comparison.something_ran
    fresh = [variant for variant in chosen if variant.name not in known]
    return StudyResult(
        comparison,
        comparison_report(comparison),
        passed and ran,
        ran,
        kept=lambda: comparison_rows("compare", comparison, fresh),
    )


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `compare`."""
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_selection(parser)
    add_tile(parser)
    add_plugins(parser)
    add_device(parser)
    add_sanitizer(parser)
    add_report(parser)
    add_keep(parser)
    add_watch(parser)


COMMAND = Command(
    "compare",
    "run every variant on one problem, check it, count its bytes, rank",
    add_options,
    run_compare,
    compare_variants,
)
