"""`report`: all of what the other commands say of some variants on one problem, as one page for a browser."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.model.discovery import REPOSITORY_ROOT
from harness.model.operation import Operation
from harness.model.variant import CALLER_ORIGIN, PLUGIN_ORIGIN
from harness.options.command import WHOLE_NUMBER, Command, add_fields_of, flag, option
from harness.options.device import (
    add_caches,
    add_device,
    add_sanitizer,
    cache_model,
    emulator_of,
    executor_of,
    modelled_arch,
    require_positive,
    sanitizing,
)
from harness.options.exit_status import FAILED, PASSED, require_something_ran
from harness.options.output import check_output
from harness.options.problem import add_drawing, add_problem
from harness.options.problem_size import check_size
from harness.options.request import StudyRequest
from harness.options.standard_streams import print_result
from harness.options.variants import add_plugins, add_selection, add_tile, require_some
from harness.support.errors import UsageError
from harness.support.file_replacement import path_to_show

if TYPE_CHECKING:
    from harness.execution.run_settings import RunSettings
    from harness.execution.timings import BenchResult
    from harness.model.problem import BaseProblem
    from harness.model.variant import Variant
    from harness.studies.report.run import Devices
    from harness.support.progress import Progress
    from harness.text.page.report_page import ReportPage


OWN_ORIGINS = (PLUGIN_ORIGIN, CALLER_ORIGIN)
"""How the origins of variants begin that the user has given, whose sources the page opens."""


@dataclass(frozen=True, kw_only=True)
class ReportRequest(StudyRequest):
    """What the page shows besides the comparison."""

    caches: bool = flag("also show the levels L2 and DRAM, with the caches of --gpu")
    bench: bool = flag("on a GPU: add the times that `bench` measures")
    fuzz: int | None = option("N", "run a `fuzz` campaign of N examples for each variant", type=WHOLE_NUMBER)


def run_report(request: ReportRequest) -> int:
    """Run `report`; the exit status."""
    output = request.report.output
    if output is None:
        raise UsageError("report writes a page; name its file with --output, such as --output report.html")
    check_output(output)
    shown = report_page(request)
    shown.save(output)
    print_result(f"Wrote {path_to_show(output)}. Open it in a browser.\n")
    require_something_ran(shown.ran)
    return PASSED if shown.passed else FAILED


def report_page(request: ReportRequest) -> ReportPage:
    """What `report` comes to."""
    from harness.execution.comparison import lost_row
    from harness.execution.isolation.variants import begin_planners
    from harness.execution.planning.tuned_tiles import with_tuned_tiles
    from harness.studies.report.page_sections import ReportData, render_report
    from harness.studies.report.run import observe_variants
    from harness.support.progress import progress_bar
    from harness.text.comparison_report import comparison_report
    from harness.text.page.report_page import ReportPage

    problem, selection = request.problem.make_whole("report"), request.selection
    require_positive("fuzz", request.fuzz)
    settings = request.settings
    caches = cache_model(request.cache_options, settings)  # an unknown GPU is a mistake in any case
    if request.caches or request.cache_options.are_special:
        settings = replace(settings, caches=caches)
    found = request.discover()
    chosen = found.registry.select(selection.variants, request.operation)
    begin_planners(chosen)
    tile, chosen = selection.tiled(chosen, problem)
    lost = [lost_row(b.name, b.reason, problem) for b in found.broken] if selection.variants is None else []
    require_some((*chosen, *lost))
    with progress_bar(2 + len(chosen) * (2 if request.fuzz else 1)) as progress:
        devices = _devices(settings, request, problem, progress)
        check_size(settings, [problem], len(chosen), emulated=not devices.executor.device.is_gpu)
        if tile is None:
            chosen = with_tuned_tiles(chosen, problem, devices.executor.device)
        observed = observe_variants(chosen, problem, devices, settings, tile=tile, lost=lost, step=progress.step)
        times = None
        if request.bench and devices.executor.device.is_gpu:
            times = _times(settings, chosen, problem, progress)
        campaigns = _campaigns(request, chosen, progress)
        progress.step("the page")
        data = ReportData(
            observed.comparison,
            observed.reports,
            caches.gpu,
            times,
            campaigns,
            observed.replays,
            own=[each.name for each in chosen if found.registry.origin_of(each.name).startswith(OWN_ORIGINS)],
        )
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


def _devices(settings: RunSettings, request: ReportRequest, problem: BaseProblem, progress: Progress) -> Devices:
    """Bytes are counted with the bank conflicts of shared memory, for they stand beside the source."""
    from harness.execution.comparison import counts_beside
    from harness.studies.report.run import Devices

    sanitizer = sanitizing(settings, request.selection.plugin, progress)[1] if settings.sanitize else None
    executor = executor_of(settings, progress)
    arch = executor.device.arch
    if settings.caches is not None and request.cache_options.gpu is not None:
        arch = modelled_arch(settings, settings.caches.gpu)
    counting = emulator_of(replace(settings, arch=arch), progress, bank_conflicts=True)
    if not executor.device.is_gpu:
        return Devices(counting, None, sanitizer)
    counts = counts_beside(settings.count, problem, executor.device)
    return Devices(executor, counting if counts else None, sanitizer)


def _times(settings: RunSettings, chosen: list[Variant], problem: BaseProblem, progress: Progress) -> BenchResult:
    """As `bench` has them."""
    from harness.gpu.contenders import bench_on_gpu

    progress.step("times")
    return bench_on_gpu(chosen, problem, settings, libraries=True, step=lambda name: progress.part(0.5, name))


def _campaigns(request: ReportRequest, chosen: list[Variant], progress: Progress) -> list[dict[str, Any]] | None:
    """A campaign's result for each variant; None without --fuzz."""
    if request.fuzz is None:
        return None
    campaigns = []
    for variant in chosen:
        progress.step(f"campaign of {variant.name}")
        campaigns.append(campaign_or_error(variant.name, request))
    return campaigns


def campaign_or_error(variant: str, request: ReportRequest) -> dict[str, Any]:
    """Run `fuzz` for one variant; its JSON, whose format is stable, or an error in that format if there is none."""
    # A plugin's path is relative to the caller, and the process starts in another folder.
    plugins = [word for path in request.selection.plugin for word in ("--plugin", str(path.resolve()))]
    command = [
        sys.executable, "-m", "harness", "fuzz", variant, "--operation", request.problem.operation, "--format", "json",
        "--examples", str(request.fuzz), "--seed", str(request.settings.seed),
        "--device", request.settings.device, *plugins,
        *(["--sanitize"] if request.settings.sanitize else []),
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=REPOSITORY_ROOT, capture_output=True, text=True)
    try:
        (campaign,) = json.loads(ended.stdout)["campaigns"]
        return dict(campaign)
    except (ValueError, KeyError):
        said = " ".join(ended.stderr.split()) or f"exit status {ended.returncode}"
        return error_result(variant, request, f"the campaign of {variant} did not finish: {said}")


def error_result(variant: str, request: ReportRequest, reason: str) -> dict[str, Any]:
    """A result in the JSON format of `fuzz` for a campaign that failed to run."""
    return {
        "variant": variant, "verdict": "error", "reason": reason, "kind": None, "examples": 0, "refused": 0,
        "seed": request.settings.seed, "error_over_budget": None, "failure": None, "replay": None,
    }  # fmt: skip


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `report`."""
    parser.add_argument("--output", type=Path, metavar="FILE.html", help="file for the page, which is self-contained")
    add_problem(parser, operation)
    add_drawing(parser, operation)
    add_selection(parser)
    add_tile(parser)
    add_plugins(parser)
    add_device(parser)
    add_sanitizer(parser)
    add_caches(parser)
    more = parser.add_argument_group("more to show, which takes longer")
    add_fields_of(ReportRequest, more, "caches", "bench", "fuzz")


COMMAND = Command(
    "report",
    "write a web page: ranking, bytes by source line, roofline, errors, two variants side by side",
    add_options,
    ReportRequest,
    run_report,
    report_page,
    examples=(
        ("--output report.html", "Write a page about all variants."),
        (
            "--variants 'fa2*,my-idea' --plugin my_idea.py --output report.html",
            "Compare your variant with FlashAttention-2.",
        ),
        ("--mask causal --dtype bfloat16 --output report.html", "Report on another problem."),
    ),
)
