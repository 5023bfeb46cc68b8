"""Times on a GPU, as measured by `bench`; an explanation if there are none."""

from __future__ import annotations

from harness.execution.timings import BenchResult
from harness.text.bench_report import bench_notes, bench_table
from harness.text.page.section import Section
from harness.text.page.templates import render


def times_section(result: BenchResult) -> Section:
    """The table of `bench`."""
    table = bench_table(result)
    headers = [(text, "number" if number else "") for text, number in zip(table.headers, table.numbers)]
    return Section("times", "Times", render("times.html", headers=headers, rows=table.cells, notes=bench_notes(result)))
