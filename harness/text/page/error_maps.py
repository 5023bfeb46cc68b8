"""Maps of error / budget over the outputs, one per variant, and a table of the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.execution.judging.error_map import ErrorMap
from harness.execution.outcome import Comparison
from harness.execution.variant_report import VariantReport
from harness.text.page.markup import Cell, Header, escape, identifier, number, paragraph, row, table, text_cell
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import UNKNOWN

DIGITS = 3
"""Significant digits of a ratio in a picture."""


def errors_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """Maps of all variants' outputs, showing the same head at a time, and a table that works without scripts."""
    shown = [(each.variant, report) for each in comparison.rows if (report := reports.get(each.variant)) is not None]
    shown = [(name, report) for name, report in shown if report.errors]
    title = "Error over budget"
    if not shown:
        return Section("errors", title, paragraph("No variant came so far as to have an error."))
    first = shown[0][1].errors[0]
    cell = f"{first.cell[0]} x {first.cell[1]}"
    pictures = "".join(_figure(name) for name, _ in shown)
    rows = [_row(name, each) for name, report in shown for each in report.errors]
    parts = [
        paragraph(
            f"Each picture is {_what(first)}; a cell is the largest of {cell} elements. Above 1 is wrong. Point at a "
            f"cell, or tab to a picture and use the arrow keys.{_left_out(first)}"
        ),
        '<div class="controls" id="errors-controls" hidden>'
        '<label>Picture of <select id="error-panel"></select></label>'
        '<label>Shades <select id="error-scale"><option value="own">of each picture by its own largest</option>'
        '<option value="one">the same for all pictures</option></select></label>'
        '<output id="error-figure" class="figure-line" aria-live="polite"></output></div>',
        f'<div class="error-maps" id="error-maps" hidden>{pictures}</div>',
        table("Error over budget", HEADERS, rows, sortable=True),
    ]
    data = {"error-maps": {name: [_data(each) for each in report.errors] for name, report in shown}}
    return Section("errors", title, "\n".join(parts), data, resource("error_maps.js"), resource("error_maps.css"))


HEADERS = (
    Header("variant"),
    Header("output"),
    Header("largest", True),
    Header("median", True),
    Header("largest at"),
    Header("got", True),
    Header("answer", True),
    Header("budget", True),
)


def _what(first: ErrorMap) -> str:
    """What one panel shows, and the direction of its axes."""
    place = first.panels[0].place if first.panels else ""
    part = "one head" if "head" in place else f"one part of {first.output}" if place else f"all of {first.output}"
    downwards = f"{first.axes[0]}s downwards, " if first.axes[0] else ""
    return f"{part}, {downwards}{first.axes[1]}s across"


def _left_out(first: ErrorMap) -> str:
    """Why some panels cannot be selected, or exist for some variants only."""
    if not first.left_out:
        return ""
    return f" Each variant shows the {len(first.panels)} with its largest errors; {first.left_out} more are smaller."


def _figure(name: str) -> str:
    anchor = identifier(name)
    return (
        f'<figure><figcaption id="error-{anchor}-name"><b>{escape(name)}</b><span></span></figcaption>'
        f'<canvas tabindex="0" role="application" aria-roledescription="heat map" data-variant="{escape(name)}" '
        f'aria-labelledby="error-{anchor}-name" aria-describedby="error-figure"></canvas></figure>'
    )


def _row(name: str, each: ErrorMap) -> str:
    worst = each.worst
    wrong = not each.largest <= 1
    return row(
        [
            Cell(escape(name), is_head=True),
            text_cell(each.output),
            number(_ratio(each.largest), "bad" if wrong else ""),
            number(_ratio(each.median)),
            text_cell(UNKNOWN if worst is None else worst.place),
            *(number(UNKNOWN if v is None else _value(v)) for v in _values(each)),
        ]
    )


def _values(each: ErrorMap) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if each.worst is None else (each.worst.got, each.worst.answer, each.worst.allowed)


def _value(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.6g}"


def _ratio(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.3g}"


def _data(each: ErrorMap) -> dict[str, Any]:
    return {
        "output": each.output,
        "axes": each.axes,
        "extents": each.extents,
        "cell": each.cell,
        "leftOut": each.left_out,
        "panels": [{"place": p.place, "cells": [[_cell(r) for r in line] for line in p.cells]} for p in each.panels],
    }


def _cell(ratio: float) -> float | str:
    """A ratio as JSON, which has neither NaN nor infinity."""
    return float(f"{ratio:.{DIGITS}g}") if math.isfinite(ratio) else "NaN" if math.isnan(ratio) else "infinite"
