"""`bench`: honest times on a GPU, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.arguments import effort_of, problem_of, problem_with
from harness.commands.choices import discover_variants, tiled
from harness.commands.exit_status import FAILED, PASSED
from harness.commands.output import check_output, publish
from harness.errors import UsageError
from harness.file_replacement import replace_files
from harness.problem import Problem

if TYPE_CHECKING:
    from harness.bench import BenchResult
    from harness.effort import Effort
    from harness.progress import Progress
    from harness.variant import Variant


def run_bench(arguments: argparse.Namespace) -> int:
    """Run `bench`; the exit status."""
    from harness.executors.gpu_context import gpu_available
    from harness.progress import progress_bar

    if arguments.sweep is not None:
        return _run_bench_sweep(arguments)
    if arguments.plot is not None:
        raise UsageError("--plot goes with --sweep, such as --sweep seq_len=256..4096")
    problem = problem_of(arguments)
    effort = effort_of(arguments)
    check_output(arguments.output)
    _require_gpu_to_bench(gpu_available())
    from harness.bench_gpu import steps_of
    from harness.bench_report import render_bench

    chosen = discover_variants(arguments).registry.select(arguments.variants)
    with progress_bar(steps_of(len(chosen), not arguments.no_libraries)) as progress:
        result = _benched(arguments, chosen, problem, effort, progress)
    publish(arguments, render_bench(result, arguments.format))
    return FAILED if result.failed else PASSED


def _run_bench_sweep(arguments: argparse.Namespace) -> int:
    from harness.bench_gpu import steps_of
    from harness.bench_sweep import BenchPoint, draw_bench_sweep, render_bench_sweep
    from harness.drawing import require_drawable
    from harness.executors.gpu_context import gpu_available
    from harness.progress import progress_bar
    from harness.sweep import parse_sweep, require_sensible
    from harness.sweep_report import what_is_fixed

    sweep = parse_sweep(arguments.sweep)
    problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    require_sensible(problems)
    effort = effort_of(arguments)
    if arguments.plot is not None:
        require_drawable(arguments.plot)
        if not sweep.is_numeric:
            raise UsageError(f"--plot needs numbers to sweep over, and {sweep.field} has none")
    check_output(arguments.output, arguments.plot)
    _require_gpu_to_bench(gpu_available())
    chosen = discover_variants(arguments).registry.select(arguments.variants)
    points = []
    with progress_bar(len(problems) * steps_of(len(chosen), not arguments.no_libraries)) as progress:
        for value, problem in zip(sweep.values, problems):
            points.append(BenchPoint(value, _benched(arguments, chosen, problem, effort, progress)))
    fixed = what_is_fixed(sweep, problems)
    if arguments.plot is not None:
        replace_files({arguments.plot: draw_bench_sweep(sweep, points, fixed, arguments.plot.suffix)})
    publish(arguments, render_bench_sweep(sweep, points, fixed, arguments.format))
    return FAILED if any(point.result.failed for point in points) else PASSED


def _require_gpu_to_bench(available: bool) -> None:
    if not available:
        raise UsageError("bench needs a GPU, and CuPy finds none; 'compare' ranks by counted bytes without one")


def _benched(
    arguments: argparse.Namespace, variants: list[Variant], problem: Problem, effort: Effort, progress: Progress
) -> BenchResult:
    from harness.bench_gpu import bench_on_gpu
    from harness.executors.gpu_context import GpuContext
    from harness.tuned_tiles import with_tuned_tiles

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
