"""Times on a GPU, as measured by `bench`; an explanation if there are none."""

from __future__ import annotations

from harness.execution.outcome import Comparison
from harness.execution.timings import BenchResult
from harness.text.bench_report import bench_notes, bench_table
from harness.text.page.section import Section
from harness.text.page.templates import render


def times_section(comparison: Comparison, result: BenchResult | None) -> Section:
    """The table of `bench`, or the reason why there is none."""
    if comparison.device.is_gpu:
        why = "Not benched: the ranking has the time of a few runs; --bench measures until each median is known."
    else:
        why = "No GPU ran the kernels, so no time is known; the emulator does not measure time."
    table = bench_table(result) if result is not None else None
    html = render(
        "times.html",
        why=why,
        headers=[(text, "number" if n else "") for text, n in zip(table.headers, table.numbers)] if table else (),
        rows=table.cells if table else (),
        notes=bench_notes(result) if result is not None else (),
    )
    return Section("times", "Times", html)
