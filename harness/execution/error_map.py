"""Where an output is off: error over budget as a picture, one panel for each head, a cell for a few elements."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from harness.execution.accuracy import Element, Float64Array, OutputAccuracy

MOST_PANELS = 16
"""Of one map; where there are more, those with the largest errors."""
MOST_CELLS = 8192
"""Of all panels together: what a page can hold of a score of variants."""
MOST_ROWS, MOST_COLUMNS = 64, 64
"""Cells of one panel."""


@dataclass(frozen=True)
class ErrorPanel:
    """The last two axes of an output, at one place along the others: a head of O."""

    place: str
    """Along the other axes, such as `batch 0, head 1`; empty where there are none."""
    cells: tuple[tuple[float, ...], ...]
    """The largest ratio of error to budget among each cell's elements; NaN where an element is NaN that must not be."""


@dataclass(frozen=True)
class ErrorMap:
    """Error over budget of one output."""

    output: str
    """The output's name."""
    axes: tuple[str, str]
    """What rows and columns of a panel are called."""
    extents: tuple[int, int]
    """Elements along them."""
    cell: tuple[int, int]
    """Elements of a cell along them; the last ones of an axis may have fewer."""
    panels: tuple[ErrorPanel, ...]
    left_out: int
    """Panels that are not shown, whose errors are no larger than those of the ones that are."""
    largest: float
    """Of all elements; NaN is larger than any."""
    median: float
    """Of all elements, NaN ones left out; NaN where nothing is left."""
    worst: Element | None
    """Where the largest one is; None where shapes differ."""

    @classmethod
    def of(cls, output: str, axes: tuple[str, ...], accuracy: OutputAccuracy) -> ErrorMap:
        """What came of holding the output against the answer, seen from far enough."""
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
    """Numbers of those that are shown, in their own order; NaN is larger than any number."""
    if len(stacked) <= MOST_PANELS:
        return [*range(len(stacked))]
    largest = np.max(stacked, axis=(1, 2), initial=0.0)
    order = np.argsort(-np.where(np.isnan(largest), np.inf, largest), kind="stable")
    return sorted(int(number) for number in order[:MOST_PANELS])


def _cell(rows: int, columns: int, room: int) -> tuple[int, int]:
    """Elements of a cell along both axes, so that a panel has at most `room` cells and no axis too many."""
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
    # np.maximum lets NaN through.
    largest = np.maximum.reduceat(np.maximum.reduceat(panel, starts[0], axis=0), starts[1], axis=1)
    return tuple(tuple(float(ratio) for ratio in row) for row in largest)
