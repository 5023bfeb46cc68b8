"""Maps of error / budget over an output: one panel per head, one cell per group of elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.execution.judging.accuracy import Element, OutputAccuracy
from harness.model.array_types import Float64Array

MOST_PANELS = 16
"""Maximum panels of one map; beyond it, those with the largest errors are shown."""
MOST_CELLS = 8192
"""Maximum cells of all panels together, so that a page can hold the maps of many variants."""
MOST_ROWS, MOST_COLUMNS = 64, 64
"""Maximum rows and columns of cells in one panel."""


@dataclass(frozen=True)
class ErrorPanel:
    """The last two axes of an output at one index of the other axes, such as one head of O."""

    place: str
    """Index along the other axes, such as `batch 0, head 1`; empty if there are none."""
    cells: tuple[tuple[float, ...], ...]
    """The largest error / budget among each cell's elements, by row; NaN if an element is NaN where the answer is
    not."""


@dataclass(frozen=True)
class ErrorMap:
    """Error / budget of one output."""

    output: str
    """Name of the output."""
    axes: tuple[str, str]
    """Names of a panel's row axis and column axis."""
    extents: tuple[int, int]
    """Number of elements along rows and columns of a panel."""
    cell: tuple[int, int]
    """Number of elements of a cell along rows and columns; the last cells of an axis may have fewer."""
    panels: tuple[ErrorPanel, ...]
    left_out: int
    """Number of panels not shown. Their errors are no larger than those of the shown panels."""
    largest: float
    """Largest value over all elements; NaN exceeds any number."""
    median: float
    """Median over all elements that are not NaN; NaN if there are none."""
    worst: Element | None
    """The element with the largest value; None if shapes differ."""

    @classmethod
    def of(cls, output: str, axes: tuple[str, ...], accuracy: OutputAccuracy) -> ErrorMap:
        """Reduce the comparison of an output with the answer to a map of limited size."""
        ratios = accuracy.over_budget
        if ratios.ndim < 2:
            ratios, axes = ratios.reshape(1, -1), ("", *axes)
        rows, columns = ratios.shape[-2:]
        stacked = ratios.reshape(-1, rows, columns)
        shown = _worst_panels(stacked)
        room = MOST_CELLS // max(1, len(shown))
        cell = _cell(rows, columns, room)
        leading = ratios.shape[:-2]
        panels = []
        for number in shown:
            index = np.unravel_index(number, leading) if leading else ()
            place = ", ".join(f"{axis} {int(at)}" for axis, at in zip(axes, index))
            panels.append(ErrorPanel(place, _largest_per_cell(stacked[number], cell)))
        finite = ratios[~np.isnan(ratios)]
        return cls(
            output,
            (axes[-2], axes[-1]),
            (rows, columns),
            cell,
            tuple(panels),
            len(stacked) - len(shown),
            accuracy.error_over_budget,
            float(np.median(finite)) if finite.size else math.nan,
            accuracy.worst,
        )


def _worst_panels(stacked: Float64Array) -> list[int]:
    """Indices of the panels to show, ascending; NaN exceeds any number."""
    if len(stacked) <= MOST_PANELS:
        return [*range(len(stacked))]
    largest = np.max(stacked, axis=(1, 2), initial=0.0)
    order = np.argsort(-np.where(np.isnan(largest), np.inf, largest), kind="stable")
    return sorted(int(number) for number in order[:MOST_PANELS])


def _cell(rows: int, columns: int, room: int) -> tuple[int, int]:
    """Elements of a cell along both axes, so that a panel has at most `room` cells and respects both axes' limits."""
    tall, wide = max(1, math.ceil(rows / MOST_ROWS)), max(1, math.ceil(columns / MOST_COLUMNS))
    while math.ceil(rows / tall) * math.ceil(columns / wide) > max(1, room):
        if math.ceil(rows / tall) >= math.ceil(columns / wide):
            tall *= 2
        else:
            wide *= 2
    return tall, wide


def _largest_per_cell(panel: Float64Array, cell: tuple[int, int]) -> tuple[tuple[float, ...], ...]:
    if not panel.size:
        return ()
    starts = [np.arange(0, extent, size) for extent, size in zip(panel.shape, cell)]
    # np.maximum propagates NaN.
    largest = np.maximum.reduceat(np.maximum.reduceat(panel, starts[0], axis=0), starts[1], axis=1)
    return tuple(tuple(float(ratio) for ratio in row) for row in largest)
