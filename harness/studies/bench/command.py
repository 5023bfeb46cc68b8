"""`bench`: honest times on a GPU, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import Command, add_fields_of, flag, option
from harness.options.device import gpus_of_this_machine
from harness.options.effort import add_effort
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude
from harness.options.problem import add_drawing, add_problem
from harness.options.request import StudyRequest
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.variants import Selection, add_plugins, add_selection, add_tile
from harness.options.workers import add_workers, are_elsewhere, cluster_of
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from harness.execution.results.kept_row import KeptRow
    from harness.execution.timings import BenchResult
    from harness.model.variant import Variant
    from harness.studies.bench.sweep import BenchPoint
    from harness.support.progress import Progress
    from harness.text.study_result import StudyResult


@dataclass(frozen=True, kw_only=True)
class BenchRequest(StudyRequest):
    """Times on one problem, or over a sweep."""

    sweep: str | None = option(
        "FIELD=VALUES", "measure times for several values of one field: seq_len=256..16384 (doubling)"
    )
    plot: Path | None = option("FILE.png|.svg", "with --sweep: plot time, bytes and intensity side by side", type=Path)
    no_libraries: bool = flag("leave out the kernels of PyTorch, cuDNN and other libraries")


def run_bench(request: BenchRequest) -> int:
    """Run `bench`; the exit status."""
    if request.plot is not None:
        if request.sweep is None:
            raise UsageError("--plot goes with --sweep, such as --sweep seq_len=256..4096")
        from harness.text.drawing import require_drawable

        require_drawable(request.plot)
    check_output(request.report.output, request.plot)
    shown = times_or_sweep(request)
    if request.plot is not None:
        replace_files({request.plot: shown.pictures["times"](request.plot.suffix)})
    return conclude(request.report, shown)


def times_or_sweep(request: BenchRequest) -> StudyResult[Any]:
    """What `bench` comes to: times on one problem, or over a field of it."""
    return _times(request) if request.sweep is None else _sweep(request)


def _times(request: BenchRequest) -> StudyResult[BenchResult]:
    from harness.gpu.context import gpu_available
    from harness.support.progress import progress_bar

    if request.workers is not None:
        raise UsageError("--workers spreads the values of a sweep; add --sweep, such as --sweep seq_len=256..4096")
    problem = request.problem.make_whole("bench")
    _require_gpu_to_bench(gpu_available())
    from harness.gpu.contenders import steps_of
    from harness.text.bench_report import bench_report
    from harness.text.study_result import StudyResult

    chosen = request.discover().registry.select(request.selection.variants, request.operation)
    with progress_bar(steps_of(len(chosen), problem, not request.no_libraries)) as progress:
        result = _benched(request, chosen, problem, progress)
    ran = result.something_ran
    return StudyResult(
        result,
        bench_report(result),
        ran and not result.failed,
        ran,
        kept=lambda: _rows_of(request, chosen, result),
    )


def _sweep(request: BenchRequest) -> StudyResult[list[BenchPoint]]:
    from harness.execution.timings import BenchResult
    from harness.gpu.contenders import steps_of
    from harness.gpu.context import gpu_available, own_gpu
    from harness.model.operation import operation_named
    from harness.options.sweep import Value, parse_sweep, what_is_fixed
    from harness.studies.bench.sweep import BenchPoint, bench_sweep_report, draw_bench_sweep
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    operation = operation_named(request.problem.operation)
    assert request.sweep is not None
    sweep = parse_sweep(request.sweep, operation)
    problems = [request.problem.make_with(sweep.field, value) for value in sweep.values]
    for problem in problems:
        operation.require_sweepable(problem)
    if request.plot is not None and not sweep.is_numeric:
        raise UsageError(f"--plot needs numbers to sweep over, and {sweep.field} has none")
    _require_gpu_to_bench(are_elsewhere(request.workers) or gpu_available())
    found = request.discover()
    chosen = found.registry.select(request.selection.variants, request.operation)
    steps = steps_of(len(chosen), problems[0], not request.no_libraries)
    with unfinished_work(request, found, "bench", _gpu_name(request.workers)) as work:
        known = {v: kept for v in sweep.values if isinstance(kept := work.known(v), BenchResult)}
        tell_going_on(len(known), f"of {len(problems):,} points")
        with (
            cluster_of(request, found, gpus_of_this_machine(), own_gpu) as cluster,
            progress_bar(len(problems) if cluster is not None else (len(problems) - len(known)) * steps) as progress,
        ):
            if cluster is None:
                points = []
                for value, problem in zip(sweep.values, problems):
                    result = known.get(value) or _benched(request, chosen, problem, progress)
                    work.finish(result, value)
                    points.append(BenchPoint(value, result))
            else:
                from harness.execution.cluster.shipping import load_of
                from harness.studies.bench.spread import PointTask, spread_points

                tasks = {
                    value: PointTask(
                        cluster.token,
                        tuple(load_of(found.origins[variant.name], variant.name) for variant in chosen),
                        request.selection.tile,
                        problem,
                        request.settings,
                        not request.no_libraries,
                    )
                    for value, problem in zip(sweep.values, problems)
                }

                def done(value: Value, result: BenchResult) -> None:
                    progress.step(f"{sweep.field} {value}")
                    work.finish(result, value)

                points = spread_points(cluster, tasks, known, done)
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
        kept=lambda: [row for point in points for row in _rows_of(request, chosen, point.result)],
    )


def _gpu_name(workers: int | str | None) -> str:
    """Times of another GPU are not gone on with; which one the workers have is theirs to know."""
    from harness.gpu.context import GpuContext

    return str(workers) if are_elsewhere(workers) else GpuContext().device.name


def _require_gpu_to_bench(available: bool) -> None:
    if not available:
        raise UsageError("bench needs a GPU, and CuPy finds none; without a GPU, 'compare' ranks by counted bytes")


def _benched(request: BenchRequest, variants: list[Variant], problem: BaseProblem, progress: Progress) -> BenchResult:
    from harness.gpu.contenders import bench_on_gpu

    return bench_on_gpu(
        _as_benched(request.selection, variants, problem)[1],
        problem,
        request.settings,
        libraries=not request.no_libraries,
        step=progress.step,
    )


def _rows_of(request: BenchRequest, variants: list[Variant], result: BenchResult) -> list[KeptRow]:
    """What there is to keep."""
    from harness.execution.results.rows import bench_rows

    asked_tile, benched = _as_benched(request.selection, variants, result.problem)
    return bench_rows("bench", result, benched, asked_tile)


def _as_benched(
    selection: Selection, variants: list[Variant], problem: BaseProblem
) -> tuple[str | None, list[Variant]]:
    """The tile sizes that are asked for, and the variants with them, or else with those that were found best."""
    from harness.execution.planning.tuned_tiles import with_tuned_tiles
    from harness.gpu.context import GpuContext

    tile, chosen = selection.tiled(variants, problem)
    return tile, chosen if tile is not None else with_tuned_tiles(chosen, problem, GpuContext().device)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `bench`."""
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_selection(parser)
    add_plugins(parser)
    add_tile(parser)
    add_effort(parser)
    add_fields_of(BenchRequest, parser.add_argument_group("sweep"), "sweep", "plot")
    add_workers(parser, "the values of a sweep (each worker uses one GPU)")
    add_afresh(parser)
    add_fields_of(BenchRequest, parser, "no_libraries")
    add_report(parser)
    add_keep(parser)


COMMAND = Command(
    "bench",
    "time variants on a GPU, together with PyTorch's and cuDNN's kernels if they are installed",
    add_options,
    BenchRequest,
    run_bench,
    times_or_sweep,
    examples=(
        ("--seq-len 4096 --dtype bfloat16", "Time all variants, and PyTorch's and cuDNN's kernels."),
        (
            "--variants fa3-cupy --causal --heads 16 --seq-len 8192 --dtype bfloat16",
            "Time one variant on a larger causal problem.",
        ),
        (
            "--variants 'fa2*' --sweep seq_len=1024,2048,4096 --plot times.png",
            "Plot times against the sequence length.",
        ),
    ),
)
