"""A GPU's roofline with the variants on it: an SVG in the page's colours, and a table of the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from harness.execution.outcome import Comparison
from harness.execution.traffic.traffic_account import TrafficAccount
from harness.execution.variant_report import VariantReport
from harness.model.problem import BaseProblem
from harness.support.gpu_data_sheets import TERA, Gpu, attainable_flops
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render
from harness.text.tables import three_digits

WIDTH, HEIGHT = 860, 430
LEFT, RIGHT, TOP, BOTTOM = 64, 846, 16, 380
"""Bounds of the plot area, in SVG units."""
LETTER = 6.4
"""Approximate width of a letter."""


@dataclass(frozen=True)
class RooflinePoint:
    """Variants that share one point."""

    names: tuple[str, ...]
    intensity: float
    """FLOP per byte at the level of `level_of`."""
    peak_flops: float
    """Peak FLOP per second that applies: tensor cores' or CUDA cores'."""
    on_tensor_cores: bool
    measured_flops: float | None
    """Measured FLOP per second; None without a time on a GPU."""


def roofline_section(comparison: Comparison, reports: Mapping[str, VariantReport], gpu: Gpu) -> Section:
    """The roofline of `gpu` with the variants whose bytes are known."""
    points = roofline_points(comparison, reports, gpu)
    if not points or not comparison.problem.flops:
        return Section("roofline", "Roofline", render("roofline.html", points=()), is_empty=True)
    level = level_of(comparison, reports)
    html = render(
        "roofline.html",
        gpu=gpu,
        level=level,
        points=[(point, attainable_flops(gpu, point.peak_flops, point.intensity)) for point in points],
        marks=_marks(comparison.problem, points, gpu, level),
        width=WIDTH,
        height=HEIGHT,
        short=three_digits,
        tera=TERA,
    )
    return Section("roofline", f"Roofline of {gpu.name}", html, style=resource("roofline.css"))


def level_of(comparison: Comparison, reports: Mapping[str, VariantReport]) -> str:
    """`DRAM` if caches were modelled for all variants whose bytes are known, otherwise `sectors`."""
    shown = [report.account for row in comparison.rows if (report := reports.get(row.variant)) is not None]
    counted = [account for account in shown if account is not None]
    return "DRAM" if counted and all(account.caches is not None for account in counted) else "sectors"


def dram_bytes(account: TrafficAccount) -> int | None:
    """Bytes between L2 and DRAM, with those that are still to be written back; None if they are not known."""
    read_and_written = account.level("DRAM").total_bytes
    if account.caches is None or read_and_written is None:
        return None
    return read_and_written + account.caches.dirty_bytes


def roofline_points(
    comparison: Comparison, reports: Mapping[str, VariantReport], gpu: Gpu
) -> tuple[RooflinePoint, ...]:
    """Points by ascending intensity.

    Variants with the same bytes and peak and without a measured time share a point.
    """
    flops, level = comparison.problem.flops, level_of(comparison, reports)
    found: dict[tuple[float, bool, float | None], list[str]] = {}
    peak = gpu.tensor_flops.get(comparison.problem.outputs[0].dtype)
    for ranked in comparison.rows:
        report = reports.get(ranked.variant)
        if report is None or report.account is None:
            continue
        moved_bytes = report.account.moved_bytes if level == "sectors" else dram_bytes(report.account)
        if not moved_bytes:
            continue
        measured = None if ranked.time_ms is None else 1000 * flops / ranked.time_ms
        on_tensor_cores = bool(report.uses_tensor_cores) and peak is not None
        place = (flops / moved_bytes, on_tensor_cores, measured)
        found.setdefault(place, []).append(ranked.variant)
    return tuple(
        RooflinePoint(tuple(names), intensity, (peak or 0.0) if tensor else gpu.float32_flops, tensor, measured)
        for (intensity, tensor, measured), names in sorted(found.items(), key=lambda item: item[0][0])
    )


@dataclass(frozen=True)
class _Line:
    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    tag: ClassVar[str] = "line"


@dataclass(frozen=True)
class _Text:
    x: float
    y: float
    words: str
    anchor: str = "start"
    kind: str = ""
    degrees: float = 0.0
    """Angle by which it is turned."""
    tag: ClassVar[str] = "text"


@dataclass(frozen=True)
class _Circle:
    x: float
    y: float
    radius: float
    kind: str
    tag: ClassVar[str] = "circle"


_Mark: TypeAlias = "_Line | _Text | _Circle"


@dataclass(frozen=True)
class _Frame:
    """Logarithmic axes."""

    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return LEFT + (RIGHT - LEFT) * math.log(value / self.left) / math.log(self.right / self.left)

    def y(self, value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * math.log(value / self.low) / math.log(self.high / self.low)


def _marks(problem: BaseProblem, points: Sequence[RooflinePoint], gpu: Gpu, level: str) -> list[_Mark]:
    """What the picture consists of, in the order of drawing."""
    peaks = {"CUDA cores, float32": gpu.float32_flops}
    if any(point.on_tensor_cores for point in points):
        dtype = problem.outputs[0].dtype
        peaks[f"tensor cores, {dtype}"] = gpu.tensor_flops[dtype]
    least = problem.flops / problem.compulsory_bytes
    ridges = [peak / gpu.memory_bytes_per_s for peak in peaks.values()]
    every = [*(point.intensity for point in points), least, *ridges]
    heights = [point.measured_flops for point in points if point.measured_flops is not None]
    left, right = min(every) / 2.5, max(every) * 9
    lowest = min([left * gpu.memory_bytes_per_s, *heights])
    frame = _Frame(left, right, lowest / TERA / 12, max(peaks.values()) / TERA * 2.5)
    roofs = _roofs(frame, gpu, peaks, [point.intensity for point in points])
    return [*_grid(frame, level), *roofs, *_dropped(frame, gpu, points, least)]


def _decades(low: float, high: float) -> list[float]:
    return [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _grid(frame: _Frame, level: str) -> list[_Mark]:
    marks: list[_Mark] = []
    for value in _decades(frame.left, frame.right):
        x = frame.x(value)
        marks += [_Line(x, TOP, x, BOTTOM, "grid"), _Text(x, BOTTOM + 17, f"{value:,g}", "middle", "faint")]
    for value in _decades(frame.low, frame.high):
        y = frame.y(value)
        marks += [_Line(LEFT, y, RIGHT, y, "grid"), _Text(LEFT - 7, y + 4, f"{value:,g}", "end", "faint")]
    marks.append(_Text((LEFT + RIGHT) / 2, HEIGHT - 12, f"FLOP per byte, {level} level", "middle", "faint"))
    marks.append(_Text(14, (TOP + BOTTOM) / 2, "TFLOP/s", "middle", "faint", -90))
    return marks


def _roofs(frame: _Frame, gpu: Gpu, peaks: Mapping[str, float], taken: Sequence[float]) -> list[_Mark]:
    """The rooflines and their labels; the label of the slope stands where there are fewest points."""
    bandwidth = gpu.memory_bytes_per_s
    highest = max(peaks.values())
    foot = max(frame.left, frame.low * TERA / bandwidth)
    slope = [(foot, foot * bandwidth / TERA), (highest / bandwidth, highest / TERA)]
    (x0, y0), (x1, y1) = [(frame.x(x), frame.y(y)) for x, y in slope]
    parts: list[_Mark] = [_Line(x0, y0, x1, y1, "roof")]
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    marks = sorted([x0, x1, *(x for intensity in taken if x0 < (x := frame.x(intensity)) < x1)])
    begin, end = max(itertools.pairwise(marks), key=lambda gap: gap[1] - gap[0])
    at_x = (begin + end) / 2
    at_y = y0 + (at_x - x0) / (x1 - x0) * (y1 - y0) - 7
    parts.append(_Text(at_x, at_y, f"memory: {bandwidth / TERA:g} TB/s", "middle", "faint", angle))
    for name, peak in peaks.items():
        x, y = frame.x(peak / bandwidth), frame.y(peak / TERA)
        parts.append(_Line(x, y, RIGHT, y, "roof"))
        parts.append(_Text(RIGHT - 3, y - 6, f"{name}: {peak / TERA:g} TFLOP/s", "end", "faint"))
    return parts


def _dropped(frame: _Frame, gpu: Gpu, points: Sequence[RooflinePoint], least: float) -> list[_Mark]:
    """Points on the roofline, each with a vertical line to its label; labels are stacked, the leftmost lowest."""
    parts: list[_Mark] = []
    feet = [*((point.intensity, point) for point in points), (least, None)]
    step = min(22.0, (BOTTOM - TOP) * 0.62 / max(1, len(feet)))
    highest = max(point.peak_flops for point in points)
    for number_of, (intensity, point) in enumerate(sorted(feet, key=lambda foot: foot[0])):
        peak = highest if point is None else point.peak_flops
        x, top = frame.x(intensity), frame.y(attainable_flops(gpu, peak, intensity) / TERA)
        foot = BOTTOM - 10 - step * number_of
        names = "compulsory bytes only" if point is None else _names(point.names)
        parts.append(_Line(x, top, x, foot, "least" if point is None else "drop"))
        words = f"{names}: {three_digits(intensity)}"
        right = x + LETTER * len(words) > RIGHT
        classes = "faint" if point is None else ""
        parts.append(_Text(x - 5 if right else x + 5, foot, words, "end" if right else "start", classes))
        if point is not None:
            parts.append(_Circle(x, top, 5, "mark tensor" if point.on_tensor_cores else "mark"))
            if point.measured_flops is not None:
                y = frame.y(max(point.measured_flops / TERA, frame.low))
                parts.append(_Circle(x, y, 4.5, "ring"))
    return parts


def _names(names: tuple[str, ...]) -> str:
    """`fa2-cupy, -numba`; of more than three names the first two and the number of the others."""
    stems = {name.rpartition("-")[0] for name in names}
    if len(names) > 1 and len(stems) == 1 and "" not in stems:
        return ", -".join([names[0], *(name.rpartition("-")[2] for name in names[1:])])
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
