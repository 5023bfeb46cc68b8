"""`report`: all of what the other commands say of some variants on one problem, as one page for a browser."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.operation import Operation
from harness.options.command import WHOLE_NUMBER, Command
from harness.options.device import (
    DEFAULT_ARCH,
    add_caches,
    add_device,
    add_sanitizer,
    cache_model,
    emulator_of,
    executor_of,
    gpu_of,
    require_positive,
    sanitizing,
)
from harness.options.exit_status import FAILED, PASSED, require_something_ran
from harness.options.inputs import add_drawing
from harness.options.output import check_output
from harness.options.problem import add_problem, problem_of
from harness.options.problem_size import check_size
from harness.options.variants import add_plugins, add_selection, add_tile, discover_variants, require_some, tiled
from harness.support.errors import UsageError

if TYPE_CHECKING:
    from harness.emulator.executor import CacheModel
    from harness.execution.protocol import Executor
    from harness.execution.timings import BenchResult
    from harness.model.problem import BaseProblem
    from harness.model.variant import Variant
    from harness.studies.report.run import Devices
    from harness.support.progress import Progress
    from harness.text.page.report_page import ReportPage


def run_report(arguments: argparse.Namespace) -> int:
    """Run `report`; the exit status."""
    if arguments.output is None:
        raise UsageError("report writes a page; name its file with --output, such as --output report.html")
    check_output(arguments.output)
    shown = report_page(arguments)
    shown.save(arguments.output)
    require_something_ran(shown.ran)
    return PASSED if shown.passed else FAILED


def report_page(arguments: argparse.Namespace) -> ReportPage:
    """What `report` comes to."""
    from harness.execution.comparison import lost_row
    from harness.execution.isolation.variants import begin_planners
    from harness.execution.tuned_tiles import with_tuned_tiles
    from harness.studies.report.page_sections import ReportData, render_report
    from harness.studies.report.run import observe_variants
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import comparison_report
    from harness.text.page.report_page import ReportPage

    problem = problem_of(arguments)
    require_positive(arguments, "fuzz")
    caches = _caches(arguments)
    found = discover_variants(arguments)
    chosen = found.registry.select(arguments.variants, arguments.operation)
    begin_planners(chosen)
    tile, chosen = tiled(arguments, chosen, problem)
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if arguments.variants is None else []
    require_some((*chosen, *lost))
    with progress_bar(2 + len(chosen) * (2 if arguments.fuzz else 1)) as progress:
        devices = _devices(arguments, problem, caches, progress)
        check_size(arguments, [problem], len(chosen), emulated=devices.executor.device.kind == "emulator")
        if tile is None:
            chosen = with_tuned_tiles(chosen, problem, devices.executor.device)
        observed = observe_variants(
            chosen, problem, devices, regime=arguments.regime, seed=arguments.seed, tile=tile, lost=lost,
            step=progress.step,
        )  # fmt: skip
        times = _times(arguments, chosen, problem, devices.executor, progress)
        campaigns = _campaigns(arguments, chosen, progress)
        progress.step("the page")
        data = ReportData(observed.comparison, observed.reports, gpu_of(arguments), times, campaigns, observed.replays)
        page = render_report(data)
    failed = [not observed.comparison.all_passed, times is not None and times.failed]
    failed += [each["verdict"] != "pass" for each in campaigns or ()]
    return ReportPage(
        observed.comparison,
        comparison_report(observed.comparison),
        passed=not any(failed),
        ran=observed.comparison.something_ran,
        page=page,
    )


def _caches(arguments: argparse.Namespace) -> CacheModel | None:
    """The caches to put behind the emulator; None where nobody asked for the levels L2 and DRAM."""
    caches = cache_model(arguments)  # an unknown GPU is a mistake anyway
    return caches if arguments.caches or arguments.l2_bytes is not None or arguments.cache_control is not None else None


def _devices(
    arguments: argparse.Namespace, problem: BaseProblem, caches: CacheModel | None, progress: Progress
) -> Devices:
    """Bytes are counted with the bank conflicts of shared memory, for they stand beside the source."""
    from harness.execution.comparison import counts_beside
    from harness.studies.report.run import Devices

    sanitizer = sanitizing(arguments, progress)[1] if arguments.sanitize else None
    executor = executor_of(arguments, progress)
    arch = DEFAULT_ARCH if executor.device.kind == "emulator" else executor.device.arch
    if caches is not None and arguments.gpu is not None:
        arch = caches.gpu.multiprocessor.arch
    counting = emulator_of(arguments, progress, arch, bank_conflicts=True, caches=caches)
    if executor.device.kind == "emulator":
        return Devices(counting, None, sanitizer)
    counts = counts_beside(arguments.count, problem, executor.device)
    return Devices(executor, counting if counts else None, sanitizer)


def _times(
    arguments: argparse.Namespace, chosen: list[Variant], problem: BaseProblem, executor: Executor, progress: Progress
) -> BenchResult | None:
    """As `bench` has them, where there is a GPU and --bench asks for it."""
    if not arguments.bench or executor.device.kind != "gpu":
        return None
    from harness.execution.timings import Effort
    from harness.gpu.contenders import bench_on_gpu

    progress.step("times")
    effort = replace(Effort(), seed=arguments.seed)
    return bench_on_gpu(
        chosen, problem, regime=arguments.regime, seed=arguments.seed, effort=effort, libraries=True,
        step=lambda name: progress.part(0.5, name),
    )  # fmt: skip


def _campaigns(arguments: argparse.Namespace, chosen: list[Variant], progress: Progress) -> list[dict[str, Any]] | None:
    """One for each variant; None where nobody asked."""
    if arguments.fuzz is None:
        return None
    from harness.studies.report.campaign_results import CampaignRequest, campaign_or_error

    asked = CampaignRequest(
        arguments.operation, arguments.fuzz, arguments.seed, arguments.device, arguments.plugin, arguments.sanitize
    )
    campaigns = []
    for variant in chosen:
        progress.step(f"campaign of {variant.name}")
        campaigns.append(campaign_or_error(variant.name, asked))
    return campaigns


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `report`."""
    parser.add_argument("--output", type=Path, metavar="FILE.html", help="the page's file; it needs nothing besides")
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_selection(parser)
    add_tile(parser)
    add_plugins(parser)
    add_device(parser)
    add_sanitizer(parser)
    add_caches(parser)
    more = parser.add_argument_group("more to show, which takes longer")
    more.add_argument("--caches", action="store_true", help="the levels L2 and DRAM too, behind the caches of --gpu")
    more.add_argument("--bench", action="store_true", help="on a GPU: times as `bench` has them")
    more.add_argument(
        "--fuzz", type=WHOLE_NUMBER, metavar="N", help="a campaign of so many examples for each variant, of --seed"
    )


COMMAND = Command(
    "report",
    "a page for a browser: ranking, source lines with their bytes, roofline, errors, two variants side by side",
    add_options,
    run_report,
    report_page,
)
