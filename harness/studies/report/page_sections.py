"""The sections of the page, in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from harness.execution.outcome import Comparison
from harness.execution.schedule.replay import Replay
from harness.execution.timings import BenchResult
from harness.execution.variant_report import VariantReport
from harness.support.gpu_data_sheets import Gpu
from harness.support.version import VERSION
from harness.text.bench_report import bench_notes, bench_table
from harness.text.comparison_report import comparison_headline, general_notes
from harness.text.page.algorithm_comparison import algorithm_section
from harness.text.page.bytes_by_level import bytes_section
from harness.text.page.campaigns import campaigns_section
from harness.text.page.error_maps import errors_section
from harness.text.page.kernel_sources import sources_section
from harness.text.page.page import render_page
from harness.text.page.ranking_table import ranking_section
from harness.text.page.replay import replay_section
from harness.text.page.result import result_section
from harness.text.page.roofline import roofline_section
from harness.text.page.section import Section
from harness.text.page.templates import render


@dataclass(frozen=True)
class ReportData:
    """The data that the page shows."""

    comparison: Comparison
    reports: Mapping[str, VariantReport]
    """Reports by variant, without those that could not be loaded."""
    gpu: Gpu
    """The GPU of the roofline and of the cache model."""
    times: BenchResult | None = None
    """Times; None if nothing was timed."""
    campaigns: Sequence[Mapping[str, Any]] | None = None
    """Campaigns in the JSON format of `fuzz`; None if none were requested."""
    replays: Sequence[Replay] = ()
    """Replays of the variants whose steps were recorded."""
    own: Collection[str] = ()
    """Names of the variants that the user has given, as plugins or as objects."""


def times_section(result: BenchResult) -> Section:
    """The table of `bench`."""
    table = bench_table(result)
    headers = [(text, "number" if number else "") for text, number in zip(table.headers, table.numbers)]
    return Section("times", "Times", render("times.html", headers=headers, rows=table.cells, notes=bench_notes(result)))


def sections_of(data: ReportData) -> list[Section]:
    """The result, the ranking, explanations and campaigns; sections with nothing to show are left out."""
    comparison, reports = data.comparison, data.reports
    sections = [
        result_section(comparison, reports),
        ranking_section(comparison),
        bytes_section(comparison, reports),
        roofline_section(comparison, reports, data.gpu),
        *([times_section(data.times)] if data.times is not None else []),
        errors_section(comparison, reports),
        sources_section(comparison, reports, data.own),
        algorithm_section(comparison, reports),
        *([replay_section(_ranked(data))] if data.replays else []),
        *([campaigns_section(data.campaigns)] if data.campaigns is not None else []),
    ]
    return [section for section in sections if not section.is_empty]


def _ranked(data: ReportData) -> list[Replay]:
    """Replays in the order of the ranking."""
    by_name = {replay.variant: replay for replay in data.replays}
    return [by_name[row.variant] for row in data.comparison.rows if row.variant in by_name]


def render_report(data: ReportData) -> str:
    """The whole page."""
    comparison = data.comparison
    title = f"{comparison.problem.operation}: {len(comparison.rows)} variants on one problem"
    notes = [" ".join(note.split()) for note in general_notes(comparison)[:1]]
    notes.append(f"Written on {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC by attention-sandbox {VERSION}.")
    return render_page(title, comparison_headline(comparison), sections_of(data), notes)
