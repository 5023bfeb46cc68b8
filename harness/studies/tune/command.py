"""`tune`: the best of the tile sizes that a variant declares."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import Command
from harness.options.device import add_emulator, emulator_of, gpus_of_this_machine, require_gpu
from harness.options.effort import add_effort, effort_of
from harness.options.exit_status import FAILED, PASSED
from harness.options.inputs import add_drawing
from harness.options.keep import add_keep, is_kept, keep_rows
from harness.options.output import add_report, check_output, publish
from harness.options.problem import add_problem, problem_of
from harness.options.problem_size import check_size
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.variants import add_plugins, discover_variants
from harness.options.workers import add_workers, are_elsewhere, cluster_of

if TYPE_CHECKING:
    from harness.execution.protocol import Device
    from harness.execution.results.kept_row import KeptRow
    from harness.execution.timings import Effort
    from harness.model.discovery import Discovery
    from harness.model.variant import Variant

    Ranks = dict[str, int | None]
    Rows = Callable[[], list[KeptRow]]


def run_tune(arguments: argparse.Namespace) -> int:
    """Run `tune`; the exit status."""
    from harness.gpu.context import gpu_available
    from harness.studies.tune.tile_contenders import best_tile, tile_contenders, tuning_verdict

    problem = problem_of(arguments)
    effort = effort_of(arguments)
    check_output(arguments.output)
    if not are_elsewhere(arguments):
        require_gpu(arguments)
    asked_for_gpu = arguments.device == "gpu" and are_elsewhere(arguments)
    by_bytes = arguments.device == "emulator" or not (gpu_available() or asked_for_gpu)
    found = discover_variants(arguments)
    variant = found.registry.get(arguments.variant)
    contenders = tile_contenders(variant, problem)
    variants = [contender for _, contender in contenders.values()]
    if by_bytes:
        text, ranks, rows = _tune_by_bytes(arguments, found, variant, variants, problem)
        best, kept_for = best_tile(ranks, contenders), None
    else:
        from harness.execution.tuned_tiles import remember

        text, ranks, rows, device = _tune_by_time(arguments, found, variant, variants, problem, effort)
        best = best_tile(ranks, contenders)
        kept = best is not None and remember(variant, problem, device, contenders[best][0])
        kept_for = device.name if kept else None
    if arguments.format in ("table", "markdown"):
        text += f"\n{tuning_verdict(variant.name, best, next(iter(contenders)), kept_for)}\n"
    publish(arguments, text)
    if is_kept(arguments):
        keep_rows(arguments, [dataclasses.replace(row, variant=variant.name, asked_tile=row.tile) for row in rows()])
    return FAILED if best is None else PASSED


def _tune_by_bytes(
    arguments: argparse.Namespace, found: Discovery, variant: Variant, variants: list[Variant], problem: BaseProblem
) -> tuple[str, Ranks, Rows]:
    from harness.execution.cluster.shipping import load_of
    from harness.execution.comparison import compare
    from harness.execution.outcome import Row
    from harness.execution.results.rows import comparison_rows
    from harness.execution.verdict import ERROR
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import render_comparison

    with (
        unfinished_work(arguments, found, "tune", "by bytes") as work,
        progress_bar(1 + len(variants)) as progress,
    ):
        known = {v.name: kept for v in variants if isinstance(kept := work.known(v.name), Row)}
        tell_going_on(len(known), f"of {len(variants):,} tiles")
        check_size(arguments, [problem], len(variants) - len(known))
        executor = emulator_of(arguments, progress)

        def done(name: str, row: Row) -> None:
            if row.verdict != ERROR:
                work.finish(row, name)

        with cluster_of(arguments, found) as cluster:
            if cluster is not None:
                from harness.studies.tune.spread import Counting, spread_counting

                names, load = tuple(v.name for v in variants), load_of(found.origins[variant.name], variant.name)
                arch, seed = executor.device.arch, arguments.seed
                asked = Counting(
                    cluster.token, load, names, problem, arguments.regime, seed, arch, arguments.step_limit
                )
                known = spread_counting(cluster, asked, known, done)
        comparison = compare(
            variants,
            problem,
            executor,
            regime=arguments.regime,
            seed=arguments.seed,
            known=known,
            step=progress.step,
            done=done,
        )
    ranks = {row.variant: row.rank for row in comparison.rows}
    return render_comparison(comparison, arguments.format), ranks, lambda: comparison_rows("tune", comparison, variants)


def _tune_by_time(
    arguments: argparse.Namespace,
    found: Discovery,
    variant: Variant,
    variants: list[Variant],
    problem: BaseProblem,
    effort: Effort,
) -> tuple[str, Ranks, Rows, Device]:
    if arguments.workers is not None:
        return _tune_on_gpus(arguments, found, variant, variants, problem, effort)
    from harness.execution.results.rows import bench_rows
    from harness.gpu.contenders import bench_on_gpu, steps_of
    from harness.support.progress import progress_bar
    from harness.text.bench_report import render_bench

    with progress_bar(steps_of(len(variants), problem, libraries=False)) as progress:
        result = bench_on_gpu(
            variants,
            problem,
            regime=arguments.regime,
            seed=arguments.seed,
            effort=effort,
            libraries=False,
            step=progress.step,
        )
    ranks = {row.variant: row.rank for row in result.rows}
    return render_bench(result, arguments.format), ranks, lambda: bench_rows("tune", result, variants), result.device


def _tune_on_gpus(
    arguments: argparse.Namespace,
    found: Discovery,
    variant: Variant,
    variants: list[Variant],
    problem: BaseProblem,
    effort: Effort,
) -> tuple[str, Ranks, Rows, Device]:
    from harness.execution.cluster.shipping import load_of
    from harness.execution.results.rows import bench_rows
    from harness.execution.timings import BenchResult
    from harness.gpu.context import own_gpu
    from harness.studies.tune.spread import Heat, spread_timing
    from harness.support.progress import progress_bar
    from harness.text.bench_report import render_bench

    with (
        unfinished_work(arguments, found, "tune", "by time") as work,
        cluster_of(arguments, found, gpus_of_this_machine(), own_gpu) as cluster,
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

        asked = Heat(cluster.token, load, names, problem, arguments.regime, arguments.seed, effort)
        heats = cluster.size
        result = spread_timing(cluster, asked, known, done)
    text = render_bench(result, arguments.format)
    if heats > 1 and arguments.format in ("table", "markdown"):
        text += (
            f"\nTimed on {heats} GPUs, a group of tiles on each, in turns with the default: times are relative to its "
            "own there, on the scale of the first GPU.\n"
        )
    ranks = {row.variant: row.rank for row in result.rows}
    return text, ranks, lambda: bench_rows("tune", result, variants), result.device


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `tune`."""
    parser.add_argument("variant", metavar="VARIANT", help="the variant's name, as 'list' shows it")
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_plugins(parser)
    device = parser.add_argument_group("device")
    device.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="gpu: by time; emulator: by counted bytes, which says less; auto: the GPU if there is one",
    )
    add_emulator(device)
    add_effort(parser, seed=False)
    add_workers(parser, "tiles, a GPU for each worker where there are GPUs,")
    add_afresh(parser)
    add_report(parser)
    add_keep(parser)


COMMAND = Command(
    "tune",
    "try every tile size that a variant declares, and keep the fastest for this GPU",
    add_options,
    run_tune,
)
