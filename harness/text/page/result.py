"""The opening of the page: the result in one sentence, and a bar per variant with the bytes of each buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.execution.judging.verdict import PASS, UNSUPPORTED
from harness.execution.outcome import Comparison, Row
from harness.execution.variant_report import VariantReport
from harness.text.page.bytes_by_level import bytes_of_buffers
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render
from harness.text.tables import mib

SKEWED = 30
"""From this ratio of the longest bar to the shortest, each bar is drawn at full length, for short ones would vanish."""
COLOURS = 10
"""Colours of the style sheet. The buffers beyond the first nine share the last one."""


def result_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """The sentence, the reasons of variants that fail, and a chart of those whose bytes were counted, best first."""
    found = {}
    for row in comparison.rows:
        report = reports.get(row.variant)
        if report is not None and report.account is not None:
            levels = bytes_of_buffers(report.account, "sectors")
            found[row.variant] = {name: part.total_bytes or 0 for name, part in levels.items()}
    names = list(dict.fromkeys(name for parts in found.values() for name in parts))
    colours = {name: min(number, COLOURS - 1) for number, name in enumerate(names)}
    most = max((sum(parts.values()) for parts in found.values()), default=0)
    bars = []
    for row in comparison.rows:
        if row.variant in found:
            parts = found[row.variant]
            total = sum(parts.values())
            bars.append((row, total, _pieces(parts, colours, most), 100 * total / max(1, most)))
    html = render(
        "result.html",
        sentence=result_sentence(comparison),
        failing=[row for row in comparison.rows if row.reason and row.verdict not in (PASS, UNSUPPORTED)],
        bars=bars,
        is_skewed=most > SKEWED * min((total for _, total, *_ in bars if total), default=most),
        colours=colours,
        smallest=comparison.problem.compulsory_bytes,
    )
    script = resource("result.js") if bars else ""
    return Section("result", "Result", html, script=script, style=resource("result.css"))


def _pieces(parts: Mapping[str, int], colours: Mapping[str, int], most: int) -> list[tuple[int, float, float]]:
    """Colour, start and width of each buffer's piece of a bar, in percent of the longest bar."""
    pieces, start = [], 0.0
    for name, number in parts.items():
        width = 100 * number / max(1, most)
        pieces.append((colours[name], start, width))
        start += width
    return pieces


def result_sentence(comparison: Comparison) -> str:
    """Which variants pass, which of them moves the fewest bytes, and by how much."""
    judged = [row for row in comparison.rows if row.verdict != UNSUPPORTED]
    passing = [row for row in judged if row.verdict == PASS]
    counted = sorted((row for row in passing if row.total_bytes), key=lambda row: row.total_bytes or 0)
    said = _who_passes(judged, passing)
    if not counted:
        return f"{said}."
    least = counted[0].total_bytes or 0
    best = [row for row in counted if row.total_bytes == least]
    size = f"{mib(least, comparison.problem.compulsory_bytes)} MiB"
    times = f"{least / comparison.problem.compulsory_bytes:,.2f} times the compulsory bytes"
    if len(counted) == 1:
        return (
            f"{said}; it moves {size}, {times}."
            if len(judged) == 1
            else f"{said}; {_names(best)} moves {size}, {times}."
        )
    if len(best) == len(counted):
        return f"{said}; {_names(best)} move the same number of bytes, {size}, {times}."
    following = counted[len(best)]
    less = 100 * (1 - least / (following.total_bytes or 1))
    verb = "moves" if len(best) == 1 else "move"
    fewest = f"{_names(best)} {verb} the fewest bytes, {size}, {times}"
    return f"{said}; {fewest}. That is {less:.2g} % less than {following.variant}."


def _who_passes(judged: Sequence[Row], passing: Sequence[Row]) -> str:
    """How many variants pass, with the names of the smaller group if the verdicts differ."""
    if not judged:
        return "No variant supports this problem"
    if len(judged) == 1:
        return f"{judged[0].variant} {'passes' if passing else 'does not pass'}"
    if not passing:
        return f"None of {len(judged)} variants passes"
    if len(passing) == len(judged):
        return "Both variants pass" if len(judged) == 2 else f"All {len(judged)} variants pass"
    others = [row for row in judged if row.verdict != PASS]
    who = _names(passing) if len(passing) <= len(others) else f"all but {_names(others)}"
    return f"{len(passing)} of {len(judged)} variants {'passes' if len(passing) == 1 else 'pass'} ({who})"


def _names(rows: Sequence[Row]) -> str:
    """The variants' names as a list in a sentence."""
    *first, last = [row.variant for row in rows]
    return f"{', '.join(first)} and {last}" if first else last
