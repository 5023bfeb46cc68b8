"""The ranking: the table of `compare`, and below it the reasons of verdicts and other remarks."""

from __future__ import annotations

from harness.execution.judging.verdict import UNSUPPORTED
from harness.execution.outcome import Comparison, Row
from harness.text.comparison_report import comparison_columns, general_notes, inferred_numerics_note
from harness.text.page.section import Section
from harness.text.page.templates import render


def ranking_section(comparison: Comparison) -> Section:
    """A table with a line per variant that supports the problem, or per variant if none does; notes list the others."""
    columns = comparison_columns(comparison)
    shown = [each for each in comparison.rows if each.verdict != UNSUPPORTED] or comparison.rows
    rows = [(each, [column.cell(each) for column in columns]) for each in shown]
    remarks = [(each, text) for each in shown if (text := _remarks(each))]
    headers = [(column.header, "number" if column.number else "") for column in columns]
    notes = [note.replace("\n", " ") for note in general_notes(comparison)]
    notes += _unsupported(comparison)
    html = render("ranking_table.html", headers=headers, rows=rows, remarks=remarks, notes=notes)
    return Section("ranking", "Ranking", html)


def _unsupported(comparison: Comparison) -> list[str]:
    """Variants that do not support the problem, by reason."""
    names: dict[str, list[str]] = {}
    for each in comparison.rows:
        if each.verdict == UNSUPPORTED:
            names.setdefault(each.reason or "", []).append(each.variant)
    return [f"{', '.join(who)}: unsupported: {reason}" for reason, who in names.items()]


def _remarks(each: Row) -> str:
    """Remarks on a row besides its numbers, a line each."""
    said = [text for text in (each.reason, each.note) if text]
    if each.error_over_strictest is not None:
        said.append(inferred_numerics_note(each))
    return "\n".join(said)
