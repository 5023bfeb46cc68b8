"""Maps of error / budget over the outputs, one per variant, and a table of the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from harness.execution.judging.error_map import ErrorMap
from harness.execution.outcome import Comparison
from harness.execution.variant_report import VariantReport
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render

DIGITS = 3
"""Significant digits of a ratio in a picture."""


def errors_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """Maps of all variants' outputs, showing the same head at a time, and a table that works without scripts.

    Optional outputs, such as lse, are in the table only.
    """
    shown = [(each.variant, report) for each in comparison.rows if (report := reports.get(each.variant)) is not None]
    shown = [(name, report) for name, report in shown if report.errors]
    if not shown:
        return Section("errors", "Error over budget", render("error_maps.html", shown=()), is_empty=True)
    first = shown[0][1].errors[0]
    html = render("error_maps.html", shown=shown, first=first, what=_what(first))
    drawn = {tensor.name for tensor in comparison.problem.outputs}
    data = {"error-maps": {name: [_data(e) for e in report.errors if e.output in drawn] for name, report in shown}}
    script, style = resource("error_maps.js"), resource("error_maps.css")
    return Section("errors", "Error over budget", html, data, script, style)


def _what(first: ErrorMap) -> str:
    """What one panel shows, and the direction of its axes."""
    place = first.panels[0].place if first.panels else ""
    part = "one head" if "head" in place else f"one part of {first.output}" if place else f"all of {first.output}"
    downwards = f"{first.axes[0]}s downwards, " if first.axes[0] else ""
    return f"{part}, {downwards}{first.axes[1]}s across"


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
