"""Pictures of a sweep: bytes over the swept field, and a roofline. Matplotlib is imported when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.model.operation import operation_of
from harness.options.sweep import Sweep
from harness.studies.traffic.sweep_point import SweepPoint
from harness.support.gpu_data_sheets import TERA, Gpu, attainable_flops
from harness.support.memory_units import MIB
from harness.text.drawing import COLOURS, DASHES, GREY, MARKERS, figure_with_room, label_ends, plain_numbers, saved
from harness.text.tables import three_digits

CLAIMED_NOTE = "hollow: taken from the variant's claim, not counted"


@dataclass(frozen=True)
class Series:
    """One line of a plot: variants with equal bytes at every value."""

    label: str
    points: tuple[SweepPoint, ...]
    """The points with known bytes."""
    colour: str
    marker: str
    dashes: str

    def peak_flops(self, gpu: Gpu) -> float:
        """Peak FLOP per second of the cores that compute its products."""
        on_tensor_cores = any(point.uses_tensor_cores for point in self.points)
        peak = gpu.tensor_flops.get(self.points[-1].problem.outputs[0].dtype) if on_tensor_cores else None
        return gpu.float32_flops if peak is None else peak


def series_of(points: Sequence[SweepPoint]) -> tuple[Series, ...]:
    """One series for each set of variants with equal bytes; variants without known bytes are left out."""
    by_variant: dict[str, list[SweepPoint]] = {}
    for point in points:
        if point.total_bytes:  # zero has no logarithm
            by_variant.setdefault(point.variant, []).append(point)
    groups: dict[tuple[Any, ...], list[list[SweepPoint]]] = {}
    for line in by_variant.values():
        key = (any(p.uses_tensor_cores for p in line), *((p.value, p.total_bytes, p.source) for p in line))
        groups.setdefault(key, []).append(line)
    return tuple(
        Series(
            _label([line[0] for line in lines]),
            tuple(lines[0]),
            COLOURS[number % len(COLOURS)],
            MARKERS[number % len(MARKERS)],
            DASHES[number % len(DASHES)],
        )
        for number, lines in enumerate(groups.values())
    )


def _label(points: Sequence[SweepPoint]) -> str:
    """Such as `fa2-cupy`, or `fa2 (cupy, numba)` for two backends of one algorithm."""
    names = [point.variant for point in points]
    stems = {name.removesuffix(f"-{point.backend}") for name, point in zip(names, points)}
    if len(points) > 1 and len(stems) == 1:
        return f"{stems.pop()} ({', '.join(point.backend for point in points)})"
    return ", ".join(names)


def draw_bytes(sweep: Sweep, points: Sequence[SweepPoint], gpu: Gpu, fixed: str, suffix: str) -> bytes:
    """Draw bytes at the `sectors` level over the swept field. `fixed` describes the other fields of the problem.

    Below the variants: compulsory bytes, and the order of the I/O lower bound for a block that has a multiprocessor of
    `gpu` to itself, where the bound applies.
    """
    figure, axes = figure_with_room()
    place = {value: float(value) if sweep.is_numeric else float(n) for n, value in enumerate(sweep.values)}
    lines = series_of(points)
    ends = []
    for line in lines:
        x = [place[p.value] for p in line.points]
        y = [(p.total_bytes or 0) / MIB for p in line.points]
        axes.plot(x, y, line.dashes, color=line.colour, linewidth=1.6, zorder=2)
        for p, at_x, at_y in zip(line.points, x, y):
            face = "white" if p.source == "claimed" else line.colour
            axes.plot([at_x], [at_y], line.marker, color=line.colour, markerfacecolor=face, markersize=6, zorder=3)
        ends.append((x[-1], y[-1], line.label, line.colour))
    least = {p.value: p.problem.compulsory_bytes / MIB for p in points}
    x = [place[value] for value in sweep.values]
    y = [least[value] for value in sweep.values]
    axes.plot(x, y, color=GREY, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    ends.append((x[-1], y[-1], "compulsory", GREY))
    bound = {place[p.value]: bound_mib for p in points if (bound_mib := _io_bound_mib(p, gpu)) is not None}
    if bound:
        at, order = sorted(bound), [bound[x] for x in sorted(bound)]
        axes.plot(at, order, color=GREY, linewidth=1, linestyle=(0, (4, 2)), zorder=1)
        ends.append((at[-1], order[-1], "order of the I/O bound", GREY))
    _scale_x(axes, sweep, place)
    heights = [height for _, height, *_ in ends] + [height for line in lines for height in _heights(line)]
    if max(heights) > 10 * min(heights):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(plain_numbers())
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(_axis_name(sweep))
    axes.set_ylabel("MiB read and written (sectors level, before any cache)")
    axes.set_title(f"Traffic against {sweep.field}\n{fixed}", fontsize=10, loc="left")
    axes.grid(True, color="#dddddd", linewidth=0.6)
    label_ends(axes, ends)
    if any(p.source == "claimed" for p in points):
        figure.text(0.01, 0.01, CLAIMED_NOTE, fontsize=8, color=GREY)
    return saved(figure, suffix)


def _io_bound_mib(point: SweepPoint, gpu: Gpu) -> float | None:
    """MiB of the bound's expression; None if it does not apply, or is not known for the operation."""
    io_bound = operation_of(point.problem).io_bound
    bound = None if io_bound is None else io_bound(point.problem, gpu.multiprocessor.on_chip_bytes)
    return None if bound is None or not bound.applies else bound.expression_bytes / MIB


def _heights(line: Series) -> list[float]:
    return [(p.total_bytes or 0) / MIB for p in line.points]


_AXIS = {
    "q_len": "q_len (rows)", "kv_len": "kv_len (rows)", "seq_len": "sequence length, q_len = kv_len (rows)",
    "head_dim": "head_dim (elements per row)",
    "v_head_dim": "v_head_dim (elements per row of V)", "batch": "batch (sequences)",
    "Br": "Br (query rows per tile)", "Bc": "Bc (keys per tile)",
}  # fmt: skip


def _axis_name(sweep: Sweep) -> str:
    return _AXIS.get(sweep.field, sweep.field)


def _scale_x(axes: Any, sweep: Sweep, place: dict[Any, float]) -> None:
    x = list(place.values())
    if sweep.is_numeric and min(x) > 0 and max(x) >= 4 * min(x):
        axes.set_xscale("log", base=2)
    axes.set_xticks(x, [f"{v:,}" if isinstance(v, int) and not isinstance(v, bool) else str(v) for v in place])
    axes.set_xticks([], minor=True)
    if len(x) > 8:
        axes.tick_params(axis="x", labelrotation=45)


def draw_roofline(points: Sequence[SweepPoint], sweep: Sweep, gpu: Gpu, fixed: str, suffix: str) -> bytes:
    """Draw each variant's arithmetic intensity under a GPU's roofline. The point with the last value is labelled."""
    figure, axes = figure_with_room(width=0.86)
    lines = series_of(points)
    dtypes = list(dict.fromkeys(p.problem.outputs[0].dtype for p in points if p.uses_tensor_cores))
    peaks = {"float32, CUDA cores": gpu.float32_flops}
    peaks |= {f"{t}, tensor cores": gpu.tensor_flops[t] for t in dtypes if t in gpu.tensor_flops}
    last = next(p.problem for p in points if p.value == sweep.values[-1])
    least = last.flops / last.compulsory_bytes
    every = [p.intensity for line in lines for p in line.points if p.intensity]
    ridge = max(peaks.values()) / gpu.memory_bytes_per_s
    left, right = min([*every, least, ridge]) / 4, max([*every, least, ridge]) * 5
    for name, peak in peaks.items():
        corner = peak / gpu.memory_bytes_per_s
        axes.plot([left, corner, right], [left * gpu.memory_bytes_per_s / TERA, peak / TERA, peak / TERA],
                  color="#333333", linewidth=1.4, zorder=1)  # fmt: skip
        axes.annotate(f"{name}: {peak / TERA:g} TFLOP/s", (right, peak / TERA), (-4, 4), fontsize=8, ha="right",
                      textcoords="offset points")  # fmt: skip
    lowest = left * gpu.memory_bytes_per_s / TERA
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(lowest / 30, max(peaks.values()) / TERA * 3)
    _along_the_slope(axes, gpu, left)
    _drop(
        axes,
        least,
        gpu,
        gpu.float32_flops,
        f"compulsory: {three_digits(least)}",
        GREY,
        "|",
        "white",
        len(lines),
        len(lines) + 1,
    )
    for number, line in enumerate(sorted(lines, key=lambda line: line.points[-1].intensity or 0)):
        end = line.points[-1]
        for point in line.points[:-1]:
            at = point.intensity or left
            axes.plot([at], [attainable_flops(gpu, line.peak_flops(gpu), at) / TERA], line.marker, color=line.colour,
                      markersize=4, alpha=0.45, zorder=2)  # fmt: skip
        face = "white" if end.source == "claimed" else line.colour
        label = f"{line.label}: {three_digits(end.intensity or 0)}"
        if end.value != sweep.values[-1]:
            label += f" (at {end.value})"
        _drop(axes, end.intensity or left, gpu, line.peak_flops(gpu), label, line.colour, line.marker, face,
              number, len(lines) + 1)  # fmt: skip
    axes.xaxis.set_major_formatter(plain_numbers())
    axes.yaxis.set_major_formatter(plain_numbers())
    axes.set_xlabel("arithmetic intensity (FLOP per byte at the sectors level: as if there were no cache)")
    axes.set_ylabel("TFLOP/s: limit without caches, not a measurement")
    at_last = f"{sweep.field} {sweep.values[-1]}" + (" (smaller, paler: the values before)" if sweep.values[1:] else "")
    axes.set_title(f"Roofline of {gpu.name}, {at_last}\n{fixed}", fontsize=10, loc="left")
    axes.grid(True, color="#eeeeee", linewidth=0.6)
    note = f"Peaks: {gpu.source}. Each variant is under the roofline of the cores that compute its matrix products."
    if any(p.source == "claimed" for p in points):
        note += f"\n{CLAIMED_NOTE[0].upper()}{CLAIMED_NOTE[1:]}."
    figure.text(0.01, 0.01, note, fontsize=8, color=GREY)
    return saved(figure, suffix)


def _along_the_slope(axes: Any, gpu: Gpu, left: float) -> None:
    """Write the bandwidth along the sloped part of the roofline."""
    points = [(x, x * gpu.memory_bytes_per_s / TERA) for x in (left * 1.15, left * 2)]
    (x0, y0), (x1, y1) = axes.transData.transform(points)
    axes.annotate(
        f"memory: {gpu.memory_bytes_per_s / TERA:g} TB/s", points[0], (-3, 5), textcoords="offset points", fontsize=8,
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)), rotation_mode="anchor",
    )  # fmt: skip


def _drop(
    axes: Any, x: float, gpu: Gpu, peak: float, label: str, colour: str, marker: str, face: str, number: int, count: int
) -> None:
    """A point on the roofline, with a vertical line to its label; labels are stacked."""
    top = attainable_flops(gpu, peak, x) / TERA
    low, high = axes.get_ylim()
    # The lower half of the picture is empty.
    foot = low * (high / low) ** (0.04 + 0.42 * number / max(8, count))
    axes.plot([x, x], [foot, top], color=colour, linewidth=0.8, zorder=1)
    axes.plot([x], [top], marker, color=colour, markerfacecolor=face, markersize=8, zorder=3)
    axes.annotate(label, (x, foot), (4, -1), textcoords="offset points", fontsize=8.5, color=colour)
