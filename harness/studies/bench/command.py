"""`bench`: honest times on a GPU, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import Command
from harness.options.device import gpus_of_this_machine
from harness.options.effort import add_effort, effort_of
from harness.options.inputs import add_drawing
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude
from harness.options.problem import add_problem, problem_of, problem_with
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.variants import add_plugins, add_selection, add_tile, discover_variants, tiled
from harness.options.workers import add_workers, are_elsewhere, cluster_of
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from harness.execution.results.kept_row import KeptRow
    from harness.execution.timings import BenchResult, Effort
    from harness.model.variant import Variant
    from harness.studies.bench.sweep import BenchPoint
    from harness.support.progress import Progress
    from harness.text.study_result import StudyResult


def run_bench(arguments: argparse.Namespace) -> int:
    """Run `bench`; the exit status."""
    if arguments.plot is not None:
        if arguments.sweep is None:
            raise UsageError("--plot goes with --sweep, such as --sweep seq_len=256..4096")
        from harness.text.drawing import require_drawable

        require_drawable(arguments.plot)
    check_output(arguments.output, arguments.plot)
    shown = times_or_sweep(arguments)
    if arguments.plot is not None:
        replace_files({arguments.plot: shown.pictures["times"](arguments.plot.suffix)})
    return conclude(arguments, shown)


def times_or_sweep(arguments: argparse.Namespace) -> StudyResult[Any]:
    """What `bench` comes to: times on one problem, or over a field of it."""
    return _times(arguments) if arguments.sweep is None else _sweep(arguments)


def _times(arguments: argparse.Namespace) -> StudyResult[BenchResult]:
    from harness.gpu.context import gpu_available
    from harness.support.progress import progress_bar

    if arguments.workers is not None:
        raise UsageError("--workers spreads the values of a sweep; add --sweep, such as --sweep seq_len=256..4096")
    problem = problem_of(arguments)
    effort = effort_of(arguments)
    _require_gpu_to_bench(gpu_available())
    from harness.gpu.contenders import steps_of
    from harness.text.bench_report import bench_report
    from harness.text.study_result import StudyResult

    chosen = discover_variants(arguments).registry.select(arguments.variants, arguments.operation)
    with progress_bar(steps_of(len(chosen), problem, not arguments.no_libraries)) as progress:
        result = _benched(arguments, chosen, problem, effort, progress)
    ran = result.something_ran
    return StudyResult(
        result,
        bench_report(result),
        ran and not result.failed,
        ran,
        kept=lambda: _rows_of(arguments, chosen, result),
    )


def _sweep(arguments: argparse.Namespace) -> StudyResult[list[BenchPoint]]:
    from harness.execution.timings import BenchResult
    from harness.gpu.contenders import steps_of
    from harness.gpu.context import gpu_available, own_gpu
    from harness.model.operation import operation_named
    from harness.options.sweep import Value, parse_sweep, what_is_fixed
    from harness.studies.bench.sweep import BenchPoint, bench_sweep_report, draw_bench_sweep
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    operation = operation_named(arguments.operation)
    sweep = parse_sweep(arguments.sweep, operation)
    problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    for problem in problems:
        operation.require_sweepable(problem)
    effort = effort_of(arguments)
    if arguments.plot is not None and not sweep.is_numeric:
        raise UsageError(f"--plot needs numbers to sweep over, and {sweep.field} has none")
    _require_gpu_to_bench(are_elsewhere(arguments) or gpu_available())
    found = discover_variants(arguments)
    chosen = found.registry.select(arguments.variants, arguments.operation)
    steps = steps_of(len(chosen), problems[0], not arguments.no_libraries)
    with unfinished_work(arguments, found, "bench", _gpu_name(arguments)) as work:
        known = {v: kept for v in sweep.values if isinstance(kept := work.known(v), BenchResult)}
        tell_going_on(len(known), f"of {len(problems):,} points")
        with (
            cluster_of(arguments, found, gpus_of_this_machine(), own_gpu) as cluster,
            progress_bar(len(problems) if cluster is not None else (len(problems) - len(known)) * steps) as progress,
        ):
            if cluster is None:
                points = []
                for value, problem in zip(sweep.values, problems):
                    result = known.get(value) or _benched(arguments, chosen, problem, effort, progress)
                    work.finish(result, value)
                    points.append(BenchPoint(value, result))
            else:
                from harness.execution.cluster.shipping import load_of
                from harness.gpu.spread import Timing
                from harness.studies.bench.spread import PointAsked, spread_points

                asked = {
                    value: PointAsked(
                        cluster.token,
                        tuple(load_of(found.origins[variant.name], variant.name) for variant in chosen),
                        arguments.tile,
                        Timing(problem, arguments.regime, arguments.seed, effort, not arguments.no_libraries),
                    )
                    for value, problem in zip(sweep.values, problems)
                }

                def done(value: Value, result: BenchResult) -> None:
                    progress.step(f"{sweep.field} {value}")
                    work.finish(result, value)

                points = spread_points(cluster, asked, known, done)
    fixed = what_is_fixed(sweep, problems)
    ran = any(point.result.something_ran for point in points)
    times = {"times": lambda suffix: draw_bench_sweep(sweep, points, fixed, suffix)} if sweep.is_numeric else {}
    passed = ran and not any(point.result.failed for point in points)
    return StudyResult(
        points,
        bench_sweep_report(sweep, points, fixed),
        passed,
        ran,
        times,
        kept=lambda: [row for point in points for row in _rows_of(arguments, chosen, point.result)],
    )


def _gpu_name(arguments: argparse.Namespace) -> str:
    """Times of another GPU are not gone on with; which one the workers have is theirs to know."""
    from harness.gpu.context import GpuContext

    return str(arguments.workers) if are_elsewhere(arguments) else GpuContext().device.name


def _require_gpu_to_bench(available: bool) -> None:
    if not available:
        raise UsageError("bench needs a GPU, and CuPy finds none; 'compare' ranks by counted bytes without one")


def _benched(
    arguments: argparse.Namespace, variants: list[Variant], problem: BaseProblem, effort: Effort, progress: Progress
) -> BenchResult:
    from harness.gpu.contenders import bench_on_gpu

    return bench_on_gpu(
        _as_benched(arguments, variants, problem)[1],
        problem,
        regime=arguments.regime,
        seed=arguments.seed,
        effort=effort,
        libraries=not arguments.no_libraries,
        step=progress.step,
    )


def _rows_of(arguments: argparse.Namespace, variants: list[Variant], result: BenchResult) -> list[KeptRow]:
    """What there is to keep."""
    from harness.execution.results.rows import bench_rows

    asked_tile, benched = _as_benched(arguments, variants, result.problem)
    return bench_rows("bench", result, benched, asked_tile)


def _as_benched(
    arguments: argparse.Namespace, variants: list[Variant], problem: BaseProblem
) -> tuple[str | None, list[Variant]]:
    """The tile sizes that are asked for, and the variants with them, or else with those that were found best."""
    from harness.execution.tuned_tiles import with_tuned_tiles
    from harness.gpu.context import GpuContext

    tile, chosen = tiled(arguments, variants, problem)
    return tile, chosen if tile is not None else with_tuned_tiles(chosen, problem, GpuContext().device)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `bench`."""
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_selection(parser)
    add_plugins(parser)
    add_tile(parser)
    add_effort(parser)
    sweep = parser.add_argument_group("sweep")
    sweep.add_argument(
        "--sweep", metavar="FIELD=VALUES", help="times against one field of the problem: seq_len=256..16384 (doubling)"
    )
    sweep.add_argument(
        "--plot", type=Path, metavar="FILE.png|.svg", help="draw time, bytes and intensity side by side to this file"
    )
    add_workers(parser, "the values of a sweep, a GPU for each worker,")
    add_afresh(parser)
    parser.add_argument("--no-libraries", action="store_true", help="leave PyTorch's and cuDNN's kernels out")
    add_report(parser)
    add_keep(parser)


COMMAND = Command(
    "bench",
    "honest timing on a GPU, beside PyTorch's and cuDNN's kernels where they are installed",
    add_options,
    run_bench,
    times_or_sweep,
)
