"""`traffic`: where a variant's bytes go, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import WHOLE_NUMBER, Command
from harness.options.device import add_caches, add_emulator, cache_model, counted_arch, emulator_of, gpu_of, require_gpu
from harness.options.inputs import add_drawing
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude
from harness.options.problem import add_problem, problem_of, problem_with
from harness.options.problem_size import check_size
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.standard_streams import complain
from harness.options.variants import add_plugins, add_selection, add_tile, discover_variants, tiled, tiled_sweep
from harness.options.watch import add_watch, kept_results, watching
from harness.options.workers import add_workers, cluster_of
from harness.support.errors import CountersUnavailable, UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.execution.cluster.cluster_client import ClusterClient
    from harness.execution.traffic_account import HardwareTraffic, TrafficAccount
    from harness.model.discovery import Discovery
    from harness.model.tile_sizes import TileSizes
    from harness.model.variant import Variant
    from harness.options.sweep import Sweep, Value
    from harness.studies.traffic.sweep_point import SweepPoint
    from harness.studies.traffic.unfinished_sweep import UnfinishedSweep
    from harness.support.progress import Progress
    from harness.text.study_result import StudyResult


_OPTION_OF = {"bytes": "plot", "roofline": "roofline"}
"""Picture of a sweep -> the option that names its file."""


def run_traffic(arguments: argparse.Namespace) -> int:
    """Run `traffic`; the exit status."""
    pictures = [(n, path) for n in ("bytes", "roofline") if (path := getattr(arguments, _OPTION_OF[n])) is not None]
    if arguments.sweep is not None:
        from harness.text.drawing import require_drawable

        for _, path in pictures:
            require_drawable(path)
    check_output(arguments.output, arguments.trace, *(path for _, path in pictures))

    def run(asked: argparse.Namespace) -> int:
        shown = account_or_sweep(asked)
        replace_files({path: shown.pictures[name](path.suffix) for name, path in pictures})
        return conclude(asked, shown)

    return watching(arguments, run)


def account_or_sweep(arguments: argparse.Namespace) -> StudyResult[Any]:
    """What `traffic` comes to: one variant's account, or the points of a sweep."""
    return _account(arguments) if arguments.sweep is None else _sweep(arguments)


def _account(arguments: argparse.Namespace) -> StudyResult[TrafficAccount]:
    for option in ("variants", "plot", "roofline"):
        if getattr(arguments, option) is not None:
            raise UsageError(f"--{option} goes with --sweep, such as --sweep q_len=512..4096")
    if arguments.count != "auto":
        raise UsageError("--count goes with --sweep; one variant alone is always counted")
    if arguments.workers is not None:
        raise UsageError("--workers spreads the points of a sweep; add --sweep, such as --sweep q_len=512..4096")
    if arguments.variant is None:
        raise UsageError("traffic needs the name of a variant, or --sweep; 'list' shows all")
    from harness.execution.tiles import tile_of
    from harness.execution.verdict import PASS
    from harness.model.operation import operation_of
    from harness.model.tile_sizes import tile_text
    from harness.studies.traffic.kept import account_rows
    from harness.studies.traffic.measurement import measure_traffic, on_chip_bytes
    from harness.studies.traffic.report import TrafficReport, traffic_report
    from harness.studies.traffic.trace import require_trace, write_trace
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    problem = problem_of(arguments)
    require_trace(arguments)
    require_gpu(arguments)
    caches = cache_model(arguments)
    asked_tile, (variant,) = tiled(arguments, [discover_variants(arguments).registry.get(arguments.variant)], problem)
    tile = tile_of(variant, problem)
    with progress_bar(1 + (arguments.device == "gpu") + (arguments.trace is not None)) as progress:
        arch = counted_arch(arguments) if arguments.gpu is None else caches.gpu.multiprocessor.arch
        check_size(arguments, [problem], 1)
        executor = emulator_of(arguments, progress, arch, bank_conflicts=arguments.lines, caches=caches)
        progress.step(variant.name)
        account = measure_traffic(variant, problem, executor, arguments.regime, arguments.seed)
        if arguments.device == "gpu":
            progress.step(f"{variant.name} under ncu")
            account = replace(account, hardware=_hardware(arguments, problem, tile))
        if arguments.trace is not None:
            progress.step(f"{variant.name}, event by event")
            write_trace(arguments, variant, problem, executor, caches.gpu)
    on_chip = on_chip_bytes(variant, problem, executor.device.arch)
    io_bound = operation_of(problem).io_bound
    bound = None if on_chip is None or io_bound is None else io_bound(problem, on_chip)
    report = TrafficReport(
        account, bound, arguments.lines, None if tile is None else tile_text(tile), caches.gpu.name, caches.flushed
    )
    return StudyResult(
        account,
        traffic_report(report),
        account.verdict == PASS,
        kept=lambda: account_rows(account, variant, asked_tile),
    )


def _hardware(arguments: argparse.Namespace, problem: BaseProblem, tile: TileSizes | None) -> HardwareTraffic | None:
    """What the GPU's counters say. Where they cannot be read, a warning, and what was counted has to do."""
    from harness.gpu.executor import GpuExecutor
    from harness.gpu.hardware_counters import Run, measure_hardware

    run = Run(arguments.variant, problem, arguments.regime, arguments.seed, tile)
    try:
        return measure_hardware(run, GpuExecutor().device, arguments.plugin)
    except CountersUnavailable as error:
        complain(f"warning: no hardware counters: {error}")
        return None


def _sweep(arguments: argparse.Namespace) -> StudyResult[tuple[SweepPoint, ...]]:
    from harness.execution.tiles import tile_names
    from harness.model.operation import operation_named
    from harness.options.sweep import parse_sweep, what_is_fixed
    from harness.studies.traffic.kept import sweep_rows
    from harness.studies.traffic.sweep_plot import draw_bytes, draw_roofline
    from harness.studies.traffic.sweep_report import other_sizes, sweep_report
    from harness.studies.traffic.sweep_run import is_counted, run_sweep
    from harness.studies.traffic.unfinished_sweep import UnfinishedSweep
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    if arguments.trace is not None or arguments.trace_events is not None:
        raise UsageError("--trace shows one run of one variant; leave out --sweep")
    if arguments.lines:
        raise UsageError("--lines shows one problem; leave out --sweep")
    if arguments.device == "gpu":
        raise UsageError("--device gpu reads the GPU's counters for one problem; leave out --sweep")
    if arguments.l2_bytes is not None or arguments.cache_control is not None:
        raise UsageError("--l2-bytes and --cache-control are for one problem; a sweep stays before the caches")
    if arguments.variant is not None and arguments.variants is not None:
        raise UsageError("VARIANT and --variants both select; leave out one")
    found = discover_variants(arguments)
    registry, kept = found.registry, kept_results(arguments)
    chosen = (
        registry.select(arguments.variants, arguments.operation)
        if arguments.variant is None
        else [registry.get(arguments.variant)]
    )
    operation = operation_named(arguments.operation)
    sweep = parse_sweep(arguments.sweep, operation, lambda: tile_names(chosen, problem_of(arguments)))
    if sweep.of_tile:
        problems = [problem_of(arguments)] * len(sweep.values)
    else:
        problems = [problem_with(arguments, sweep.field, value) for value in sweep.values]
    for problem in problems:
        operation.require_sweepable(problem)
    sweep = tiled_sweep(arguments, sweep, chosen, problems)
    roof = gpu_of(arguments)
    known = kept.known(variant.name for variant in chosen)
    arch, number = counted_arch(arguments), len(problems) * (len(chosen) - len(known))
    with unfinished_work(arguments, found, "traffic", arch) as work, progress_bar(number) as progress:
        executor = emulator_of(arguments, progress, arch)
        unfinished = UnfinishedSweep(work, chosen, sweep, problems)
        tell_going_on(len(unfinished.known), f"of {number:,} points")
        counted = [problem for problem in problems if is_counted(problem, arguments.count)]
        check_size(arguments, counted, len(chosen) - len(known))
        with cluster_of(arguments, found) as cluster:
            if cluster is None:
                points = run_sweep(
                    chosen,
                    sweep,
                    problems,
                    executor,
                    count=arguments.count,
                    regime=arguments.regime,
                    seed=arguments.seed,
                    known={**unfinished.known, **{(n, v): p for n, of in known.items() for v, p in of.items()}},
                    step=progress.step,
                    done=unfinished.done,
                )
            else:
                points = _spread(arguments, cluster, found, chosen, sweep, problems, arch, unfinished, progress)
    kept.keep(found, {v.name: {p.value: p for p in points if p.variant == v.name} for v in chosen})
    fixed = what_is_fixed(sweep, problems)
    if sweep.of_tile and (others := other_sizes(sweep, points)):
        fixed += f"\n{others}"
    ran = any(point.supported for point in points)
    fresh = [variant for variant in chosen if variant.name not in known]
    return StudyResult(
        points,
        sweep_report(sweep, points, executor.device),
        passed=ran and not any(point.is_wrong for point in points),
        ran=ran,
        pictures={
            "bytes": lambda suffix: draw_bytes(sweep, points, fixed, suffix),
            "roofline": lambda suffix: draw_roofline(points, sweep, roof, fixed, suffix),
        },
        kept=lambda: sweep_rows(points, fresh, sweep, executor.device, arguments.regime, arguments.seed),
    )


def _spread(
    arguments: argparse.Namespace,
    cluster: ClusterClient,
    found: Discovery,
    chosen: Sequence[Variant],
    sweep: Sweep,
    problems: Sequence[BaseProblem],
    arch: str,
    unfinished: UnfinishedSweep,
    progress: Progress,
) -> tuple[SweepPoint, ...]:
    from harness.execution.cluster.shipping import load_of
    from harness.studies.traffic.sweep_spread import Counting, spread_sweep

    def done(place: tuple[str, Value], point: SweepPoint) -> None:
        progress.step(f"{sweep.field} {place[1]}, {place[0]} and others")
        unfinished.done(place, point)

    counting = Counting(cluster.token, arguments.count, arguments.regime, arguments.seed, arch, arguments.step_limit)
    loads = [(variant, load_of(found.origins[variant.name], variant.name)) for variant in chosen]
    return spread_sweep(cluster, counting, loads, sweep, problems, unfinished.known, done)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `traffic`."""
    parser.add_argument(
        "variant", metavar="VARIANT", nargs="?", help="the variant's name, as 'list' shows it; --sweep needs none"
    )
    parser.add_argument(
        "--lines",
        action="store_true",
        help="by source line too, with the bank conflicts of shared memory (which takes several times as long)",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.json",
        help="write a timeline of blocks, warps, barriers, waits and copies, which Perfetto and chrome://tracing open; "
        "with --device gpu of the GPU itself",
    )
    parser.add_argument(
        "--trace-events",
        type=WHOLE_NUMBER,
        metavar="N",
        help="about how many events the timeline has at most, of whole blocks, the first ones (default: 100000)",
    )
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_tile(parser)
    add_plugins(parser)
    _add_sweep(parser)
    counting = parser.add_argument_group("device")
    counting.add_argument(
        "--device",
        choices=("auto", "gpu", "emulator"),
        default="auto",
        help="bytes are counted on the emulator; auto: of kernels compiled for the GPU that is there, if any; gpu: "
        "beside them what that GPU's own counters say, through Nsight Compute",
    )
    add_emulator(counting)
    add_caches(parser)
    add_workers(parser, "the points of a sweep")
    add_afresh(parser)
    add_report(parser)
    add_keep(parser)
    add_watch(parser)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sweep")
    group.add_argument(
        "--sweep",
        metavar="FIELD=VALUES",
        help="bytes of many variants against one field of the problem: q_len=512..16384 (doubling) or "
        "head_dim=32,64,128; seq_len is q_len and kv_len. Or against a tile size that variants declare: Bc=8..64",
    )
    add_selection(group)
    group.add_argument(
        "--count",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: points that take longer than seconds to emulate are as the variant claims; never: all are",
    )
    group.add_argument(
        "--plot", type=Path, metavar="FILE.png|.svg", help="draw bytes against the field, all variants, to this file"
    )
    group.add_argument(
        "--roofline",
        type=Path,
        metavar="FILE.png|.svg",
        help="draw each variant's arithmetic intensity under a GPU's roof",
    )


COMMAND = Command(
    "traffic",
    "a variant's bytes by level, buffer, launch and source line, or a sweep over many",
    add_options,
    run_traffic,
    account_or_sweep,
)
