"""Renders times over a field of the problem: tables, and a picture of time, bytes and intensity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.execution.timings import BenchResult, BenchRow
from harness.options.sweep import Sweep, Value
from harness.support.memory_units import GIB
from harness.text.drawing import COLOURS, DASHES, GREY, MARKERS, label_ends, open_frame, plain_numbers, saved
from harness.text.report import Report, Table
from harness.text.tables import UNKNOWN, device_line, finite

_KEYS = ("verdict", "time_ms", "time_low_ms", "time_high_ms", "sustained_ms", "sector_bytes", "reason")


@dataclass(frozen=True)
class BenchPoint:
    """All contenders at one value of the swept field."""

    value: Value
    result: BenchResult


def bench_sweep_report(sweep: Sweep, points: Sequence[BenchPoint], fixed: str) -> Report:
    """The report of a timing sweep."""
    return Report(
        paragraphs=lambda: [
            f"Milliseconds, median of cold runs, against {sweep.field}; {fixed}",
            _table(sweep, points),
        ],
        notes=lambda: [*_notes(points)],
        records=lambda: (
            [{sweep.field: p.value, **_object(row)} for p in points for row in p.result.rows],
            [sweep.field, "variant", *_KEYS],
        ),
        document=lambda: {
            "sweep": sweep.field,
            "device": points[0].result.device.name,
            "points": [{sweep.field: p.value, "rows": [_object(row) for row in p.result.rows]} for p in points],
        },
    )


def _table(sweep: Sweep, points: Sequence[BenchPoint]) -> Table:
    names = _names(points)
    cells = [
        [f"{point.value:,}" if isinstance(point.value, int) else str(point.value)]
        + [_cell(row) for row in (_row(point, name) for name in names)]
        for point in points
    ]
    headers = [sweep.field, *(name.replace("-", "-\n") for name in names)]
    return Table(headers, cells, [True] * len(headers))


def draw_bench_sweep(sweep: Sweep, points: Sequence[BenchPoint], fixed: str, suffix: str) -> bytes:
    """Draw three panels over the swept field: milliseconds, bytes at the `sectors` level, FLOP per byte."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5.6))
    panels: list[tuple[str, Callable[[BenchPoint, BenchRow], float | None]]] = [
        ("milliseconds (median of cold runs)", lambda p, row: row.time_ms),
        ("GiB at the sectors level (as claimed)", lambda p, row: row.sector_bytes and row.sector_bytes / GIB),
        ("FLOP per byte", lambda p, row: row.sector_bytes and p.result.problem.flops / row.sector_bytes),
    ]
    for number, (name, height) in enumerate(panels):
        axes = figure.add_axes((0.04 + 0.33 * number, 0.14, 0.21, 0.7))
        open_frame(axes)
        ends = []
        for label, colour, marker, dashes, line in _lines(points, height):
            x, y = [float(value) for value, _ in line], [at for _, at in line]
            axes.plot(x, y, dashes, color=colour, marker=marker, markersize=5, linewidth=1.5)
            ends.append((x[-1], y[-1], label, colour))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([float(p.value) for p in points], [f"{p.value:,}" for p in points], rotation=45)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(plain_numbers())
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.set_xlabel(sweep.field)
        axes.set_title(name, fontsize=10, loc="left")
        label_ends(axes, ends)
    result = points[0].result
    figure.suptitle(f"{result.device.name}; {fixed}", x=0.04, ha="left", fontsize=11)
    return saved(figure, suffix)


_Line = tuple[str, str, str, str, list[tuple[Any, float]]]


def _lines(points: Sequence[BenchPoint], height: Callable[[BenchPoint, BenchRow], float | None]) -> Iterator[_Line]:
    """Label, colour, marker, dashes and points.

    Each algorithm has a colour, each backend a dash style; equal lines merge.
    """
    stems: dict[str, int] = {}
    drawn: dict[tuple[Any, ...], str] = {}
    for name in _names(points):
        found = [(p.value, height(p, row)) for p in points if (row := _row(p, name)) is not None]
        line = [(value, float(at)) for value, at in found if at]
        if not line:
            continue
        stem = name.rpartition("-")[0]
        if stem == "torch":
            yield name, GREY, MARKERS[len(drawn) % len(MARKERS)], ":", line
            continue
        if (stem, tuple(line)) in drawn:
            continue  # equal bytes of the other backend
        dashes = DASHES[sum(key[0] == stem for key in drawn) % len(DASHES)]
        drawn[stem, tuple(line)] = name
        number = stems.setdefault(stem, len(stems))
        same = all(row.sector_bytes and height(p, row) != row.time_ms for p in points if (row := _row(p, name)))
        label = stem if same else name
        yield label, COLOURS[number % len(COLOURS)], MARKERS[number], dashes, line


def _names(points: Sequence[BenchPoint]) -> list[str]:
    """Names of variants, then of libraries, each sorted."""
    kinds = {row.variant: row.kind for point in points for row in point.result.rows}
    return sorted(kinds, key=lambda name: (kinds[name] == "library", name))


def _row(point: BenchPoint, name: str) -> BenchRow | None:
    return next((row for row in point.result.rows if row.variant == name), None)


def _cell(row: BenchRow | None) -> str:
    if row is None or row.verdict == "unsupported":
        return UNKNOWN
    return row.verdict if row.time_ms is None else f"{row.time_ms:,.3f}"


def _notes(points: Sequence[BenchPoint]) -> Iterator[str]:
    result = points[0].result
    driver = f", driver {result.driver}" if result.driver else ""
    torch = f", PyTorch {result.torch}" if result.torch else ""
    device = f"{device_line(result.device)}{driver}{torch}"
    yield f"Device: {device}. L2 overwritten before each run, contenders taking turns."
    for point in points:
        for row in point.result.rows:
            if row.verdict in ("fail", "error"):
                yield f"{row.variant} at {point.value}: {row.verdict}: {row.reason}"


def _object(row: BenchRow) -> dict[str, Any]:
    return {"variant": row.variant} | {key: finite(getattr(row, key)) for key in _KEYS}
