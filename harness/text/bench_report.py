"""Renders benchmark results: a table for people, markdown for documents, csv and json for programs."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from harness.execution.timings import BenchResult, BenchRow
from harness.model.operation import operation_of
from harness.text.report import Column, Report, Table
from harness.text.tables import UNKNOWN, device_line, finite, notes_on_devices


def render_bench(result: BenchResult, format: str) -> str:
    """Render the result in one of `FORMATS`, ending in a line break."""
    return bench_report(result).render(format)


def bench_report(result: BenchResult) -> Report:
    """The report of a benchmark."""
    headline = f"{result.problem.headline}; inputs {result.regime}, seeds from {result.seed}"
    return Report(
        paragraphs=lambda: [
            headline,
            bench_table(result),
        ],
        notes=lambda: bench_notes(result),
        records=lambda: ([_object(row, result) for row in result.rows], _keys()),
        document=lambda: _document(result),
    )


def bench_table(result: BenchResult) -> Table:
    """A table with a line per contender, the fastest first."""
    return Table.of(bench_columns(result), result.rows)


def bench_columns(result: BenchResult) -> list[Column[BenchRow]]:
    """The columns, in order."""

    def rank(row: BenchRow) -> str:
        tied = row.rank is not None and sum(other.rank == row.rank for other in result.rows) > 1
        return UNKNOWN if row.rank is None else f"{row.rank}{'=' if tied else ''}"

    def of_copy(row: BenchRow) -> str:
        return _percent(sector_bytes_per_s(row), result.gpus * result.ceilings.copy_bytes_per_s)

    return [
        Column("rank", rank),
        Column("variant", lambda row: row.variant, number=False),
        Column("verdict", lambda row: row.verdict, number=False),
        Column("time\nms", lambda row: _number(row.time_ms, 4)),
        Column("±\n%", lambda row: UNKNOWN if row.time_ms is None else f"{_noise_percent(row):.2f}"),
        Column("runs", lambda row: UNKNOWN if row.samples is None else str(row.samples)),
        Column("sustained\nms", lambda row: _number(row.sustained_ms, 4)),
        Column("clock\nMHz", lambda row: _number(row.sustained_mhz, 0)),
        Column("TFLOP/s", lambda row: _number(tera_flops(row, result), 2)),
        Column(
            "% of\nmatrix",
            lambda row: _percent(tera_flops(row, result), result.gpus * result.ceilings.matrix_flops / 1e12),
        ),
        Column("sectors\nGB/s", lambda row: _number(_scaled(sector_bytes_per_s(row), 1e9), 0)),
        Column("% of\ncopy", of_copy),
        Column("compile\ns", lambda row: _number(_scaled(row.compile_ms, 1000), 2)),
    ]


def _document(result: BenchResult) -> dict[str, Any]:
    about = {f.name: getattr(result, f.name) for f in fields(result) if f.name != "rows"}
    about |= {"problem": result.problem.to_fields()}
    about |= {name: asdict(about[name]) for name in ("device", "ceilings", "effort")}
    return about | {"rows": [_object(row, result) for row in result.rows]}


def tera_flops(row: BenchRow, result: BenchResult) -> float | None:
    """10^12 of the problem's floating-point operations per second."""
    return None if row.time_ms is None else result.problem.flops / row.time_ms / 1e9


def sector_bytes_per_s(row: BenchRow) -> float | None:
    """Bytes at the `sectors` level per second."""
    return None if row.time_ms is None or row.sector_bytes is None else 1000 * row.sector_bytes / row.time_ms


def _number(value: float | None, decimals: int) -> str:
    return UNKNOWN if value is None else f"{value:,.{decimals}f}"


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _percent(value: float | None, whole: float) -> str:
    return UNKNOWN if value is None else f"{100 * value / whole:.1f}"


def _noise_percent(row: BenchRow) -> float:
    assert row.time_ms is not None and row.time_low_ms is not None and row.time_high_ms is not None
    return 50 * (row.time_high_ms - row.time_low_ms) / row.time_ms


def bench_notes(result: BenchResult) -> list[str]:
    """Notes on what was measured, on what device, and how; then notes on single rows."""
    ceilings, operation = result.ceilings, operation_of(result.problem)
    driver = f", driver {result.driver}" if result.driver else ""
    notes = [
        f"Device: {device_line(result.device)}{driver}. Measured on it just now: copy "
        f"{ceilings.copy_bytes_per_s / 1e12:.2f} TB/s, matrix product {ceilings.matrix_dtype} "
        f"{ceilings.matrix_flops / 1e12:.1f} TFLOP/s.",
        "time: median of cold runs, all contenders taking turns, L2 overwritten before each; ± is half the "
        "width of the 95 % confidence interval of the median. Ranked by time; = marks times whose intervals overlap, "
        "so that their order is unknown.",
        f"sustained: mean over at least {result.effort.sustained_seconds:g} s of back-to-back runs, caches warm; "
        "clock: measured during these runs. If the sustained time is much longer than the cold one, the clock rate "
        "fell or, for short kernels, the host could not launch any faster.",
        f"TFLOP/s: {operation.flops_in_words}. GB/s: the bytes of sectors that the variant claims, per second of the "
        "median time; above 100 % of copy, caches served some of these bytes.",
    ]
    notes += notes_on_devices(result.problem, result.device)
    if result.torch is not None and operation.libraries_in_words is not None:
        notes.append(operation.libraries_in_words(result.torch))
    others = [f"{name} {version}" for name, version in result.libraries.items() if name != "PyTorch"]
    if others:
        notes.append(f"Installed with PyTorch: {', '.join(others)}.")
    for row in result.rows:
        if row.held_down_by is not None:
            notes.append(f"{row.variant}: clock rate limited by {row.held_down_by} during the sustained runs")
        if row.reason is not None:
            notes.append(f"{row.variant}: {row.verdict}: {row.reason}")
    return notes


def _keys() -> list[str]:
    return [*(f.name for f in fields(BenchRow)), "tera_flops", "sector_bytes_per_s"]


def _object(row: BenchRow, result: BenchResult) -> dict[str, Any]:
    values = asdict(row) | {"tera_flops": tera_flops(row, result), "sector_bytes_per_s": sector_bytes_per_s(row)}
    return {key: finite(values[key]) for key in _keys()}
