"""`bench`: honest times on a GPU, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import Command
from harness.options.effort import add_effort, effort_of
from harness.options.exit_status import FAILED, PASSED, require_something_ran
from harness.options.inputs import add_drawing
from harness.options.output import add_report, check_output, publish
from harness.options.problem import add_problem, problem_of, problem_with
from harness.options.variants import add_plugins, add_selection, add_tile, discover_variants, tiled
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from harness.execution.timings import BenchResult, Effort
    from harness.model.variant import Variant
    from harness.support.progress import Progress


def run_bench(arguments: argparse.Namespace) -> int:
    """Run `bench`; the exit status."""
    from harness.gpu.context import gpu_available
    from harness.support.progress import progress_bar

    if arguments.sweep is not None:
        return _run_bench_sweep(arguments)
    if arguments.plot is not None:
        raise UsageError("--plot goes with --sweep, such as --sweep seq_len=256..4096")
    problem = problem_of(arguments)
    effort = effort_of(arguments)
    check_output(arguments.output)
    _require_gpu_to_bench(gpu_available())
    from harness.gpu.contenders import steps_of
    from harness.text.bench_report import render_bench

    chosen = discover_variants(arguments).registry.select(arguments.variants, arguments.operation)
    with progress_bar(steps_of(len(chosen), problem, not arguments.no_libraries)) as progress:
        result = _benched(arguments, chosen, problem, effort, progress)
    publish(arguments, render_bench(result, arguments.format))
    require_something_ran(result.something_ran)
    return FAILED if result.failed else PASSED


def _run_bench_sweep(arguments: argparse.Namespace) -> int:
    from harness.gpu.contenders import steps_of
    from harness.gpu.context import gpu_available
    from harness.model.operation import operation_named
    from harness.options.sweep import parse_sweep, what_is_fixed
    from harness.studies.bench.sweep import BenchPoint, draw_bench_sweep, render_bench_sweep
    from harness.support.progress import progress_bar
    from harness.text.drawing import require_drawable

    operation = operation_named(arguments.operation)
    sweep = parse_sweep(arguments.sweep, operation)
    problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    for problem in problems:
        operation.require_sweepable(problem)
    effort = effort_of(arguments)
    if arguments.plot is not None:
        require_drawable(arguments.plot)
        if not sweep.is_numeric:
            raise UsageError(f"--plot needs numbers to sweep over, and {sweep.field} has none")
    check_output(arguments.output, arguments.plot)
    _require_gpu_to_bench(gpu_available())
    chosen = discover_variants(arguments).registry.select(arguments.variants, arguments.operation)
    points = []
    with progress_bar(len(problems) * steps_of(len(chosen), problems[0], not arguments.no_libraries)) as progress:
        for value, problem in zip(sweep.values, problems):
            points.append(BenchPoint(value, _benched(arguments, chosen, problem, effort, progress)))
    fixed = what_is_fixed(sweep, problems)
    if arguments.plot is not None:
        replace_files({arguments.plot: draw_bench_sweep(sweep, points, fixed, arguments.plot.suffix)})
    publish(arguments, render_bench_sweep(sweep, points, fixed, arguments.format))
    require_something_ran(any(point.result.something_ran for point in points))
    return FAILED if any(point.result.failed for point in points) else PASSED


def _require_gpu_to_bench(available: bool) -> None:
    if not available:
        raise UsageError("bench needs a GPU, and CuPy finds none; 'compare' ranks by counted bytes without one")


def _benched(
    arguments: argparse.Namespace, variants: list[Variant], problem: BaseProblem, effort: Effort, progress: Progress
) -> BenchResult:
    from harness.execution.tuned_tiles import with_tuned_tiles
    from harness.gpu.contenders import bench_on_gpu
    from harness.gpu.context import GpuContext

    tile, chosen = tiled(arguments, variants, problem)
    return bench_on_gpu(
        chosen if tile is not None else with_tuned_tiles(chosen, problem, GpuContext().device),
        problem,
        regime=arguments.regime,
        seed=arguments.seed,
        effort=effort,
        libraries=not arguments.no_libraries,
        step=progress.step,
    )


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
    parser.add_argument("--no-libraries", action="store_true", help="leave PyTorch's and cuDNN's kernels out")
    add_report(parser)


COMMAND = Command(
    "bench",
    "honest timing on a GPU, beside PyTorch's and cuDNN's kernels where they are installed",
    add_options,
    run_bench,
)
