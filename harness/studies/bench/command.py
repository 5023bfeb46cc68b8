"""`bench`: honest times on a GPU, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from harness.operations.attention.problem import Problem
from harness.options.arguments import effort_of, problem_of, problem_with
from harness.options.choices import discover_variants, tiled
from harness.options.exit_status import FAILED, PASSED
from harness.options.output import check_output, publish
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from harness.gpu.bench import BenchResult
    from harness.gpu.effort import Effort
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

    chosen = discover_variants(arguments).registry.select(arguments.variants)
    with progress_bar(steps_of(len(chosen), not arguments.no_libraries)) as progress:
        result = _benched(arguments, chosen, problem, effort, progress)
    publish(arguments, render_bench(result, arguments.format))
    return FAILED if result.failed else PASSED


def _run_bench_sweep(arguments: argparse.Namespace) -> int:
    from harness.gpu.contenders import steps_of
    from harness.gpu.context import gpu_available
    from harness.options.sweep import parse_sweep, require_sensible
    from harness.studies.bench.sweep import BenchPoint, draw_bench_sweep, render_bench_sweep
    from harness.studies.traffic.sweep_report import what_is_fixed
    from harness.support.progress import progress_bar
    from harness.text.drawing import require_drawable

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
