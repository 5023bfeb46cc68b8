"""Times on a GPU, as measured by `bench`; an explanation if there are none."""

from __future__ import annotations

from harness.execution.outcome import Comparison
from harness.execution.timings import BenchResult
from harness.text.bench_report import bench_notes, bench_table
from harness.text.page.markup import Cell, Header, escape, paragraph, row, table
from harness.text.page.section import Section


def times_section(comparison: Comparison, result: BenchResult | None) -> Section:
    """The table of `bench`, or the reason why there is none."""
    title = "Times"
    if result is None:
        if comparison.device.kind == "gpu":
            why = "Not benched: the ranking has the time of a few runs; --bench measures until each median is known."
        else:
            why = "No GPU ran the kernels, so no time is known: an emulator's would say nothing about a GPU's."
        return Section("times", title, paragraph(why))
    bench = bench_table(result)
    headers = [Header(text, is_number) for text, is_number in zip(bench.headers, bench.numbers)]
    rows = [row([Cell(escape(cell), n) for cell, n in zip(cells, bench.numbers)]) for cells in bench.cells]
    notes = "".join(paragraph(note) for note in bench_notes(result))
    return Section("times", title, table("Times on the GPU", headers, rows, sortable=True) + notes)
