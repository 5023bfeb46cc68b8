"""A GPU's roofline with the variants on it: an SVG in the page's colours, and a table of the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.execution.outcome import Comparison
from harness.execution.variant_report import VariantReport
from harness.model.problem import BaseProblem
from harness.support.gpu_data_sheets import TERA, Gpu, attainable_flops
from harness.text.page.markup import Header, escape, number, paragraph, row, scrolling, table, text_cell
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import UNKNOWN

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
    """FLOP per byte at the `sectors` level."""
    peak_flops: float
    """Peak FLOP per second that applies: tensor cores' or CUDA cores'."""
    on_tensor_cores: bool
    measured_flops: float | None
    """Measured FLOP per second; None without a time on a GPU."""


def roofline_section(comparison: Comparison, reports: Mapping[str, VariantReport], gpu: Gpu) -> Section:
    """The roofline of `gpu` with the variants whose bytes are known."""
    problem = comparison.problem
    points = roofline_points(comparison, reports, gpu)
    if not points or not problem.flops:
        return Section("roofline", "Roofline", paragraph("Bytes were not counted, so no variant has a place on it."))
    title = f"Roofline of {gpu.name}"
    measured = any(point.measured_flops is not None for point in points)
    what = (
        "Full marks: attainable, which is what the roof allows at the variant's intensity, not a measurement. "
        + ("Rings below them: measured on the GPU. " if measured else "No GPU ran it, so nothing here is measured. ")
        + "Intensity: the problem's FLOP over bytes at the sectors level, as if there were no cache; a ring may thus "
        "lie above the slope where caches serve re-reads."
    )
    parts = [
        "<figure>",
        scrolling(title, _picture(problem, points, gpu)),
        f"<figcaption>{escape(what)} Peaks: {escape(gpu.source)}.</figcaption></figure>",
        table(f"{title}: its points", HEADERS, (_point_row(point, gpu) for point in points), sortable=True),
    ]
    return Section("roofline", title, "\n".join(parts), style=resource("roofline.css"))


HEADERS = (
    Header("variant"),
    Header("FLOP /\nbyte", True),
    Header("bound by"),
    Header("roof"),
    Header("attainable\nTFLOP/s", True),
    Header("measured\nTFLOP/s", True),
)


def roofline_points(
    comparison: Comparison, reports: Mapping[str, VariantReport], gpu: Gpu
) -> tuple[RooflinePoint, ...]:
    """Points by ascending intensity.

    Variants with the same bytes and peak and without a measured time share a point.
    """
    flops = comparison.problem.flops
    found: dict[tuple[float, bool, float | None], list[str]] = {}
    peak = gpu.tensor_flops.get(comparison.problem.outputs[0].dtype)
    for ranked in comparison.rows:
        report = reports.get(ranked.variant)
        if report is None or report.account is None or not report.account.moved_bytes:
            continue
        measured = None if ranked.time_ms is None else 1000 * flops / ranked.time_ms
        on_tensor_cores = bool(report.uses_tensor_cores) and peak is not None
        place = (flops / report.account.moved_bytes, on_tensor_cores, measured)
        found.setdefault(place, []).append(ranked.variant)
    return tuple(
        RooflinePoint(tuple(names), intensity, (peak or 0.0) if tensor else gpu.float32_flops, tensor, measured)
        for (intensity, tensor, measured), names in sorted(found.items(), key=lambda item: item[0][0])
    )


def _point_row(point: RooflinePoint, gpu: Gpu) -> str:
    ridge = point.peak_flops / gpu.memory_bytes_per_s
    return row(
        [
            text_cell(", ".join(point.names), "wrap"),
            number(_short(point.intensity)),
            text_cell("memory" if point.intensity < ridge else "arithmetic"),
            text_cell("tensor cores" if point.on_tensor_cores else "CUDA cores, float32"),
            number(_short(attainable_flops(gpu, point.peak_flops, point.intensity) / TERA)),
            number(UNKNOWN if point.measured_flops is None else _short(point.measured_flops / TERA)),
        ]
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


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


def _picture(problem: BaseProblem, points: Sequence[RooflinePoint], gpu: Gpu) -> str:
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
    parts = [*_grid(frame), *_roofs(frame, gpu, peaks, [point.intensity for point in points])]
    parts += _dropped(frame, gpu, points, least)
    label = f"Roofline of {gpu.name}: the table below has its points"
    return (
        f'<svg class="roofline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, words: str, anchor: str = "start", classes: str = "", more: str = "") -> str:
    kind = f' class="{classes}"' if classes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}{more}>{escape(words)}</text>'


def _decades(low: float, high: float) -> list[float]:
    return [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


def _grid(frame: _Frame) -> list[str]:
    parts = []
    for value in _decades(frame.left, frame.right):
        x = frame.x(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}"/>')
        parts.append(_text(x, BOTTOM + 17, f"{value:,g}", "middle", "faint"))
    for value in _decades(frame.low, frame.high):
        y = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 7, y + 4, f"{value:,g}", "end", "faint"))
    middle = (TOP + BOTTOM) / 2
    turned = f' transform="rotate(-90 14 {middle:.0f})"'
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 12, "FLOP per byte, sectors level", "middle", "faint"))
    parts.append(_text(14, middle, "TFLOP/s", "middle", "faint", turned))
    return parts


def _roofs(frame: _Frame, gpu: Gpu, peaks: Mapping[str, float], taken: Sequence[float]) -> list[str]:
    """The rooflines and their labels; the label of the slope stands where there are fewest points."""
    bandwidth = gpu.memory_bytes_per_s
    highest = max(peaks.values())
    foot = max(frame.left, frame.low * TERA / bandwidth)
    slope = [(foot, foot * bandwidth / TERA), (highest / bandwidth, highest / TERA)]
    (x0, y0), (x1, y1) = [(frame.x(x), frame.y(y)) for x, y in slope]
    parts = [f'<line class="roof" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>']
    angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
    marks = sorted([x0, x1, *(x for intensity in taken if x0 < (x := frame.x(intensity)) < x1)])
    begin, end = max(itertools.pairwise(marks), key=lambda gap: gap[1] - gap[0])
    at_x = (begin + end) / 2
    at_y = y0 + (at_x - x0) / (x1 - x0) * (y1 - y0) - 7
    turned = f' transform="rotate({angle:.1f} {at_x:.1f} {at_y:.1f})"'
    parts.append(_text(at_x, at_y, f"memory: {bandwidth / TERA:g} TB/s", "middle", "faint", turned))
    for name, peak in peaks.items():
        x, y = frame.x(peak / bandwidth), frame.y(peak / TERA)
        parts.append(f'<line class="roof" x1="{x:.1f}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}"/>')
        parts.append(_text(RIGHT - 3, y - 6, f"{name}: {peak / TERA:g} TFLOP/s", "end", "faint"))
    return parts


def _dropped(frame: _Frame, gpu: Gpu, points: Sequence[RooflinePoint], least: float) -> list[str]:
    """Points on the roofline, each with a vertical line to its label; labels are stacked, the leftmost lowest."""
    parts = []
    feet = [*((point.intensity, point) for point in points), (least, None)]
    step = min(22.0, (BOTTOM - TOP) * 0.62 / max(1, len(feet)))
    highest = max(point.peak_flops for point in points)
    for number_of, (intensity, point) in enumerate(sorted(feet, key=lambda foot: foot[0])):
        peak = highest if point is None else point.peak_flops
        x, top = frame.x(intensity), frame.y(attainable_flops(gpu, peak, intensity) / TERA)
        foot = BOTTOM - 10 - step * number_of
        names = "compulsory bytes only" if point is None else _names(point.names)
        kind = "least" if point is None else "drop"
        parts.append(f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{foot:.1f}"/>')
        words = f"{names}: {_short(intensity)}"
        right = x + LETTER * len(words) > RIGHT
        classes = "faint" if point is None else ""
        parts.append(_text(x - 5 if right else x + 5, foot, words, "end" if right else "start", classes))
        if point is not None:
            mark = "mark tensor" if point.on_tensor_cores else "mark"
            parts.append(f'<circle class="{mark}" cx="{x:.1f}" cy="{top:.1f}" r="5"/>')
            if point.measured_flops is not None:
                y = frame.y(max(point.measured_flops / TERA, frame.low))
                parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    return parts


def _names(names: tuple[str, ...]) -> str:
    """`fa2-cupy, -numba`; of more than three names the first two and the number of the others."""
    stems = {name.rpartition("-")[0] for name in names}
    if len(names) > 1 and len(stems) == 1 and "" not in stems:
        return ", -".join([names[0], *(name.rpartition("-")[2] for name in names[1:])])
    return ", ".join(names) if len(names) <= 3 else f"{', '.join(names[:2])} and {len(names) - 2} more"
