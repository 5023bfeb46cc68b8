"""`tune`: the best of the tile sizes that a variant declares."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import Command, add_fields_of, argument
from harness.options.device import add_device_choice, add_emulator, emulator_of, gpus_of_this_machine, require_gpu
from harness.options.effort import add_effort
from harness.options.exit_status import FAILED, PASSED
from harness.options.keep import add_keep, keep_rows
from harness.options.output import add_report, check_output, publish
from harness.options.problem import add_drawing, add_problem
from harness.options.problem_size import check_size
from harness.options.request import StudyRequest
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.variants import add_plugins
from harness.options.workers import add_workers, are_elsewhere, cluster_of

if TYPE_CHECKING:
    from harness.execution.protocol import Device
    from harness.execution.results.kept_row import KeptRow
    from harness.model.discovery import Discovery
    from harness.model.variant import Variant
    from harness.text.report import Report

    Ranks = dict[str, int | None]
    Rows = Callable[[], list[KeptRow]]


@dataclass(frozen=True, kw_only=True)
class TuneRequest(StudyRequest):
    """The variant to tune."""

    variant: str = argument("VARIANT", "name of the variant, as shown by 'list'")


def run_tune(request: TuneRequest) -> int:
    """Run `tune`; the exit status."""
    from harness.gpu.context import gpu_available
    from harness.studies.tune.tile_contenders import (
        best_tile,
        fewest_bytes_verdict,
        shortest_time_verdict,
        tile_contenders,
    )
    from harness.text.report import NOTE_WIDTH

    problem, report = request.problem.make_whole("tune"), request.report
    check_output(report.output)
    if not are_elsewhere(request.workers):
        require_gpu(request.settings)
    device = request.settings.device
    by_bytes = device == "emulator" or not (gpu_available() or (device == "gpu" and are_elsewhere(request.workers)))
    found = request.discover()
    variant = found.registry.get(request.variant)
    contenders = tile_contenders(variant, problem)
    variants = [contender for _, contender in contenders.values()]
    if by_bytes:
        shown, ranks, rows = _tune_by_bytes(request, found, variant, variants, problem)
        best = best_tile(ranks, contenders)
        verdict = fewest_bytes_verdict(variant.name, ranks, contenders)
    else:
        from harness.execution.planning.tuned_tiles import remember

        shown, ranks, rows, gpu = _tune_by_time(request, found, variant, variants, problem)
        best = best_tile(ranks, contenders)
        kept = best is not None and remember(variant, problem, gpu, contenders[best][0])
        verdict = shortest_time_verdict(variant.name, best, contenders, gpu.name if kept else None)
    summary = fill(verdict, NOTE_WIDTH, break_on_hyphens=False)
    publish(report, dataclasses.replace(shown, paragraphs=lambda: [*shown.paragraphs(), summary]))
    if report.is_kept:
        keep_rows(report, [dataclasses.replace(row, variant=variant.name, asked_tile=row.tile) for row in rows()])
    return FAILED if best is None else PASSED


def _tune_by_bytes(
    request: TuneRequest, found: Discovery, variant: Variant, variants: list[Variant], problem: BaseProblem
) -> tuple[Report, Ranks, Rows]:
    from harness.execution.cluster.shipping import load_of
    from harness.execution.comparison import compare
    from harness.execution.judging.verdict import ERROR
    from harness.execution.outcome import Row
    from harness.execution.results.rows import comparison_rows
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import comparison_report

    with (
        unfinished_work(request, found, "tune", "by bytes") as work,
        progress_bar(1 + len(variants)) as progress,
    ):
        known = {v.name: kept for v in variants if isinstance(kept := work.known(v.name), Row)}
        tell_going_on(len(known), f"of {len(variants):,} tiles")
        check_size(request.settings, [problem], len(variants) - len(known))
        executor = emulator_of(request.settings, progress)

        def done(name: str, row: Row) -> None:
            if row.verdict != ERROR:
                work.finish(row, name)

        with cluster_of(request, found) as cluster:
            if cluster is not None:
                from harness.studies.tune.spread import TileTask, spread_counting

                names, load = tuple(v.name for v in variants), load_of(found.origins[variant.name], variant.name)
                task = TileTask(cluster.token, load, names, problem, request.settings)
                known = spread_counting(cluster, task, known, done)
        comparison = compare(variants, problem, executor, request.settings, known=known, step=progress.step, done=done)
    ranks = {row.variant: row.rank for row in comparison.rows}
    return comparison_report(comparison), ranks, lambda: comparison_rows("tune", comparison, variants)


def _tune_by_time(
    request: TuneRequest, found: Discovery, variant: Variant, variants: list[Variant], problem: BaseProblem
) -> tuple[Report, Ranks, Rows, Device]:
    if request.workers is not None:
        return _tune_on_gpus(request, found, variant, variants, problem)
    from harness.execution.results.rows import bench_rows
    from harness.gpu.contenders import bench_on_gpu, steps_of
    from harness.support.progress import progress_bar
    from harness.text.bench_report import bench_report

    with progress_bar(steps_of(len(variants), problem, libraries=False)) as progress:
        result = bench_on_gpu(variants, problem, request.settings, libraries=False, step=progress.step)
    ranks = {row.variant: row.rank for row in result.rows}
    return bench_report(result), ranks, lambda: bench_rows("tune", result, variants), result.device


def _tune_on_gpus(
    request: TuneRequest, found: Discovery, variant: Variant, variants: list[Variant], problem: BaseProblem
) -> tuple[Report, Ranks, Rows, Device]:
    from harness.execution.cluster.shipping import load_of
    from harness.execution.results.rows import bench_rows
    from harness.execution.timings import BenchResult
    from harness.gpu.context import own_gpu
    from harness.studies.tune.spread import TileTask, spread_timing
    from harness.support.progress import progress_bar
    from harness.text.bench_report import bench_report

    with (
        unfinished_work(request, found, "tune", "by time") as work,
        cluster_of(request, found, gpus_of_this_machine(), own_gpu) as cluster,
        progress_bar(cluster.size if cluster is not None else 1) as progress,
    ):
        assert cluster is not None
        load, names = load_of(found.origins[variant.name], variant.name), tuple(v.name for v in variants)
        progress.step(f"{len(names)} tiles on {cluster.size} GPUs")

        def known(heat: tuple[str, ...]) -> BenchResult | None:
            kept = work.known(*heat)
            return kept if isinstance(kept, BenchResult) else None

        def done(heat: tuple[str, ...], result: BenchResult) -> None:
            progress.step(f"{', '.join(heat[:2])} and others")
            work.finish(result, *heat)

        task = TileTask(cluster.token, load, names, problem, request.settings)
        heats = cluster.size
        result = spread_timing(cluster, task, known, done)
    shown = bench_report(result)
    if heats > 1:
        note = (
            f"Timed on {heats} GPUs, a group of tiles on each, in turns with the default tile: times are scaled by "
            "the default's times to those of the first GPU."
        )
        shown = dataclasses.replace(shown, notes=lambda: [*bench_report(result).notes(), note])
    ranks = {row.variant: row.rank for row in result.rows}
    return shown, ranks, lambda: bench_rows("tune", result, variants), result.device


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `tune`."""
    add_fields_of(TuneRequest, parser, "variant")
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_plugins(parser)
    help = "gpu: rank by time; emulator: rank by counted bytes, a weaker criterion; auto: the GPU if there is one"
    add_emulator(add_device_choice(parser.add_argument_group("device"), help))
    add_effort(parser, seed=False)
    add_workers(parser, "tile sizes (each worker uses one GPU if there are any)")
    add_afresh(parser)
    add_report(parser)
    add_keep(parser)


COMMAND = Command(
    "tune",
    "try all tile sizes that a variant declares, and store the fastest for this GPU",
    add_options,
    TuneRequest,
    run_tune,
    examples=(
        ("fa2-cupy --seq-len 4096", "Find the fastest tile for this problem."),
        ("fa2-mma-cupy --dtype bfloat16 --head-dim 128 --causal", "Tune for a causal problem in bfloat16."),
        ("fa2-cupy --device emulator", "Find the tile that moves the fewest bytes, without a GPU."),
    ),
)
