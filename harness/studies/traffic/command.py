"""`traffic`: where a variant's bytes go, on one problem or over a field of it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation
from harness.model.problem import BaseProblem
from harness.options.command import WHOLE_NUMBER, Command, add_fields_of, argument, flag, option
from harness.options.device import (
    add_caches,
    add_device_choice,
    add_emulator,
    arch_of,
    cache_model,
    emulator_of,
    gpu_of,
    modelled_arch,
    require_gpu,
)
from harness.options.keep import add_keep
from harness.options.output import add_report, check_output, conclude, tell_written
from harness.options.problem import add_drawing, add_problem
from harness.options.problem_size import check_size
from harness.options.request import StudyRequest
from harness.options.resume import add_afresh, tell_going_on, unfinished_work
from harness.options.standard_streams import complain
from harness.options.variants import add_plugins, add_selection, add_tile
from harness.options.watch import add_watch
from harness.options.workers import add_workers, cluster_of
from harness.support.errors import CountersUnavailable, UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.execution.cluster.cluster_client import ClusterClient
    from harness.execution.run_settings import RunSettings
    from harness.execution.traffic.traffic_account import HardwareTraffic, TrafficAccount
    from harness.gpu.hardware_counters import Run
    from harness.model.discovery import Discovery
    from harness.model.variant import Variant
    from harness.options.sweep import Sweep, Value
    from harness.studies.traffic.claim_draft import ClaimDraft
    from harness.studies.traffic.sweep_point import SweepPoint
    from harness.studies.traffic.sweep_run import UnfinishedSweep
    from harness.support.progress import Progress
    from harness.text.study_result import StudyResult


@dataclass(frozen=True, kw_only=True)
class TrafficRequest(StudyRequest):
    """One variant to account for, or a sweep over many."""

    variant: str | None = argument("VARIANT", "name of the variant, as shown by 'list'; with --sweep, none", nargs="?")
    lines: bool = flag(
        "show bytes by source line too, with the bank conflicts of shared memory; takes several times as long"
    )
    trace: Path | None = option(
        "FILE.json", "write a timeline of blocks, warps, barriers, waits and copies, which you can open in "
        "Perfetto or chrome://tracing; with --device gpu, it is recorded on the GPU itself", type=Path,
    )  # fmt: skip
    trace_events: int | None = option(
        "N", "approximate maximum number of events in the timeline (default: 100000); blocks are recorded in full, "
        "starting with the first, until this number is reached",
        type=WHOLE_NUMBER,
    )  # fmt: skip
    sweep: str | None = option(
        "FIELD=VALUES", "count bytes for several values of one field of the problem, q_len=512..16384 (doubling) or "
        "head_dim=32,64,128, or of a tile size that variants declare, Bc=8..64; seq_len sets both q_len and kv_len",
    )  # fmt: skip
    plot: Path | None = option("FILE.png|.svg", "plot bytes against the field, for all variants", type=Path)
    roofline: Path | None = option(
        "FILE.png|.svg", "plot each variant's arithmetic intensity under the GPU's roofline", type=Path
    )
    claim_draft: bool = flag("print a first 'claim' for the variant, fitted to the counts of small problems")


def run_traffic(request: TrafficRequest) -> int:
    """Run `traffic`; the exit status."""
    named = {"bytes": request.plot, "roofline": request.roofline}
    pictures = [(name, path) for name, path in named.items() if path is not None]
    if request.sweep is not None:
        from harness.text.drawing import require_drawable

        for _, path in pictures:
            require_drawable(path)
    check_output(request.report.output, request.trace, *(path for _, path in pictures))
    shown = account_or_sweep(request)
    replace_files({path: shown.pictures[name](path.suffix) for name, path in pictures})
    status = conclude(request.report, shown)
    tell_written(request.report, *named.values())
    return status


def account_or_sweep(request: TrafficRequest) -> StudyResult[Any]:
    """What `traffic` comes to: one variant's account, a draft of its claim, or the points of a sweep."""
    if request.sweep is not None:
        return _sweep(request)
    return _draft(request) if request.claim_draft else _account(request)


def _draft(request: TrafficRequest) -> StudyResult[ClaimDraft]:
    from harness.studies.traffic.claim_draft import draft_claim, draft_report
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    if request.variant is None:
        raise UsageError("--claim-draft needs the name of a variant; 'list' shows all variants")
    variant = request.discover().registry.get(request.variant)
    settings = replace(request.settings, arch=arch_of(request.settings))
    with progress_bar(1) as progress:
        progress.step(variant.name)
        draft = draft_claim(variant, request.problem.make_whole("--draft-claim"), emulator_of(settings, progress))
    return StudyResult(draft, draft_report(draft), draft.is_complete and not draft.unlike)


def _account(request: TrafficRequest) -> StudyResult[TrafficAccount]:
    given = {"variants": request.selection.variants, "plot": request.plot, "roofline": request.roofline}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"--{name} goes with --sweep, such as --sweep q_len=512..4096")
    if request.settings.count != "auto":
        raise UsageError("--count goes with --sweep; one variant alone is always counted")
    if request.workers is not None:
        raise UsageError("--workers spreads the points of a sweep; add --sweep, such as --sweep q_len=512..4096")
    if request.variant is None:
        raise UsageError("traffic needs the name of a variant, or --sweep; 'list' shows all variants")
    from harness.execution.judging.verdict import PASS
    from harness.execution.planning.tiles import tile_of
    from harness.gpu.hardware_counters import Run
    from harness.model.operation import operation_of
    from harness.model.tile_sizes import tile_text
    from harness.studies.traffic.kept import account_rows
    from harness.studies.traffic.measurement import compiled_usage, measure_traffic
    from harness.studies.traffic.report import TrafficReport, traffic_report
    from harness.studies.traffic.trace import require_trace, write_trace
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    problem = request.problem.make()
    require_trace(request)
    require_gpu(request.settings)
    caches = cache_model(request.cache_options, request.settings)
    registry = request.discover().registry
    asked_tile, (variant,) = request.selection.tiled([registry.get(request.variant)], problem)
    tile = tile_of(variant, problem)
    named = request.cache_options.gpu is not None
    arch = modelled_arch(request.settings, caches.gpu) if named else arch_of(request.settings)
    settings = replace(request.settings, arch=arch, caches=caches)
    with progress_bar(1 + (settings.device == "gpu") + (request.trace is not None)) as progress:
        check_size(settings, [problem], 1)
        executor = emulator_of(settings, progress, bank_conflicts=request.lines)
        progress.step(variant.name)
        account = measure_traffic(variant, problem, executor, settings)
        if settings.device == "gpu":
            progress.step(f"{variant.name} under ncu")
            run = Run(variant.name, problem, settings, tile)
            account = replace(account, hardware=_hardware(run, request.selection.plugin))
        if request.trace is not None:
            progress.step(f"{variant.name}, event by event")
            write_trace(request, variant, problem, executor, caches.gpu)
    used = compiled_usage(variant, problem, executor.device.arch)
    io_bound = operation_of(problem).io_bound
    report = TrafficReport(
        account,
        bound=None if used is None or io_bound is None else io_bound(problem, used.on_chip_bytes),
        lines=request.lines,
        tile=None if tile is None else tile_text(tile),
        gpu=caches.gpu.name,
        flushed=caches.flushed,
        spilled_bytes=0 if used is None else used.spilled_bytes,
    )
    return StudyResult(
        account,
        traffic_report(report),
        account.verdict == PASS,
        kept=lambda: account_rows(account, variant, asked_tile),
    )


def _hardware(run: Run, plugins: Sequence[Path]) -> HardwareTraffic | None:
    """What the GPU's counters say. Where they cannot be read, a warning, and what was counted has to do."""
    from harness.gpu.executor import GpuExecutor
    from harness.gpu.hardware_counters import measure_hardware

    try:
        return measure_hardware(run, GpuExecutor().device, plugins)
    except CountersUnavailable as error:
        complain(f"warning: no hardware counters: {error}")
        return None


def _sweep(request: TrafficRequest) -> StudyResult[tuple[SweepPoint, ...]]:
    from harness.execution.planning.tiles import tile_names
    from harness.model.operation import operation_named
    from harness.options.sweep import parse_sweep, what_is_fixed
    from harness.studies.traffic.kept import sweep_rows
    from harness.studies.traffic.sweep_plot import draw_bytes, draw_roofline
    from harness.studies.traffic.sweep_report import other_sizes, sweep_report
    from harness.studies.traffic.sweep_run import UnfinishedSweep, is_counted, run_sweep
    from harness.support.progress import progress_bar
    from harness.text.study_result import StudyResult

    if request.trace is not None or request.trace_events is not None:
        raise UsageError("--trace shows one run of one variant; leave out --sweep")
    if request.lines:
        raise UsageError("--lines shows one problem; leave out --sweep")
    if request.settings.device == "gpu":
        raise UsageError("--device gpu reads the GPU's counters for one problem; leave out --sweep")
    if request.cache_options.are_special:
        raise UsageError("--l2-bytes and --cache-control are for one problem; a sweep does not model caches")
    if request.variant is not None and request.selection.variants is not None:
        raise UsageError("VARIANT and --variants both select variants; leave out one")
    assert request.sweep is not None
    found, selection, fields = request.discover(), request.selection, request.problem
    chosen = (
        found.registry.select(selection.variants, request.operation)
        if request.variant is None
        else [found.registry.get(request.variant)]
    )
    operation = operation_named(fields.operation)
    sweep = parse_sweep(request.sweep, operation, lambda: tile_names(chosen, fields.make()))
    if sweep.of_tile:
        problems = [fields.make()] * len(sweep.values)
    else:
        problems = [fields.make_with(sweep.field, value) for value in sweep.values]
    for problem in problems:
        operation.require_sweepable(problem)
    sweep = selection.tiled_sweep(sweep, chosen, problems)
    roof = gpu_of(request.cache_options, request.settings)
    known = request.kept.known(variant.name for variant in chosen)
    settings = replace(request.settings, arch=arch_of(request.settings))
    number = len(problems) * (len(chosen) - len(known))
    with unfinished_work(request, found, "traffic", settings.arch) as work, progress_bar(number) as progress:
        executor = emulator_of(settings, progress)
        unfinished = UnfinishedSweep(work, chosen, sweep, problems)
        tell_going_on(len(unfinished.known), f"of {number:,} points")
        counted = [problem for problem in problems if is_counted(problem, settings.count)]
        check_size(settings, counted, len(chosen) - len(known))
        with cluster_of(request, found) as cluster:
            if cluster is None:
                points = run_sweep(
                    chosen,
                    sweep,
                    problems,
                    executor,
                    settings,
                    known={**unfinished.known, **{(n, v): p for n, of in known.items() for v, p in of.items()}},
                    step=progress.step,
                    done=unfinished.done,
                )
            else:
                points = _spread(cluster, settings, found, chosen, sweep, problems, unfinished, progress)
    request.kept.keep(found, {v.name: {p.value: p for p in points if p.variant == v.name} for v in chosen})
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
            "bytes": lambda suffix: draw_bytes(sweep, points, roof, fixed, suffix),
            "roofline": lambda suffix: draw_roofline(points, sweep, roof, fixed, suffix),
        },
        kept=lambda: sweep_rows(points, fresh, sweep, executor.device, settings.regime, settings.seed),
    )


def _spread(
    cluster: ClusterClient,
    settings: RunSettings,
    found: Discovery,
    chosen: Sequence[Variant],
    sweep: Sweep,
    problems: Sequence[BaseProblem],
    unfinished: UnfinishedSweep,
    progress: Progress,
) -> tuple[SweepPoint, ...]:
    from harness.execution.cluster.shipping import load_of
    from harness.studies.traffic.sweep_spread import spread_sweep

    def done(place: tuple[str, Value], point: SweepPoint) -> None:
        progress.step(f"{sweep.field} {place[1]}, {place[0]} and others")
        unfinished.done(place, point)

    loads = [(variant, load_of(found.origins[variant.name], variant.name)) for variant in chosen]
    return spread_sweep(cluster, settings, loads, sweep, problems, unfinished.known, done)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `traffic`."""
    add_fields_of(TrafficRequest, parser, "variant", "lines", "trace", "trace_events", "claim_draft")
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_tile(parser)
    add_plugins(parser)
    _add_sweep(parser)
    counting = add_device_choice(
        parser.add_argument_group("device"),
        "bytes are counted on the emulator. auto: compile kernels for the GPU that is present, if any; gpu: also show "
        "that GPU's own counters, from Nsight Compute; emulator: ignore any GPU",
    )
    add_emulator(counting, arch="that of the GPU")
    add_caches(parser)
    add_workers(parser, "the points of a sweep")
    add_afresh(parser)
    add_report(parser)
    add_keep(parser)
    add_watch(parser)


def _add_sweep(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sweep")
    add_fields_of(TrafficRequest, group, "sweep")
    add_selection(group)
    group.add_argument(
        "--count",
        choices=("auto", "always", "never"),
        help="always: emulate every point; never: use the variants' claims; auto: emulate the points that take no more "
        "than a few seconds",
    )
    add_fields_of(TrafficRequest, group, "plot", "roofline")


COMMAND = Command(
    "traffic",
    "show a variant's bytes by level, buffer, launch and source line, or sweep over many problems",
    add_options,
    TrafficRequest,
    run_traffic,
    account_or_sweep,
    examples=(
        ("fa1-cupy --lines", "Attribute the bytes to buffers and source lines."),
        ("fa2-cupy --gpu h100", "Model the caches of an H100."),
        (
            "--variants 'fa*' --sweep seq_len=128,256,512 --plot traffic.png",
            "Plot the bytes of several variants against the sequence length.",
        ),
    ),
)
