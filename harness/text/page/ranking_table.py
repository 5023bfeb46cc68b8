"""The ranking: the table of `compare`, with each variant's verdict and its reason."""

from __future__ import annotations

from harness.execution.judging.verdict import PASS, UNSUPPORTED
from harness.execution.outcome import Comparison, Row
from harness.text.comparison_report import Column, comparison_columns, general_notes
from harness.text.page.markup import Cell, Header, escape, identifier, paragraph, row, table
from harness.text.page.section import Section


def ranking_section(comparison: Comparison) -> Section:
    """A table with a line per variant that supports the problem, or per variant if none does; notes list the others."""
    columns = comparison_columns(comparison)
    shown = [each for each in comparison.rows if each.verdict != UNSUPPORTED] or comparison.rows
    headers = [Header(column.header, column.number) for column in columns]
    remarks = any(_remarks(each) for each in shown)
    rows = []
    for each in shown:
        cells = [_cell(column, each) for column in columns]
        rows.append(row([*cells, Cell(_remarks(each), classes="wrap")] if remarks else cells))
    if remarks:
        headers.append(Header("reason, remarks"))
    notes = [note.replace("\n", " ") for note in general_notes(comparison)]
    notes += _unsupported(comparison)
    html = table("Ranking of all variants", headers, rows, sortable=True) + "".join(map(paragraph, notes))
    return Section("ranking", "Ranking", html)


def _unsupported(comparison: Comparison) -> list[str]:
    """Variants that do not support the problem, by reason."""
    names: dict[str, list[str]] = {}
    for each in comparison.rows:
        if each.verdict == UNSUPPORTED:
            names.setdefault(each.reason or "", []).append(each.variant)
    return [f"{', '.join(who)}: unsupported: {reason}" for reason, who in names.items()]


def _cell(column: Column, each: Row) -> Cell:
    text = escape(column.cell(each))
    if column.header == "variant":
        return Cell(f'<a href="#source-{identifier(each.variant)}">{text}</a>', is_head=True)
    classes = ""
    if column.header == "verdict":
        classes = "good" if each.verdict == PASS else "muted" if each.verdict == UNSUPPORTED else "bad"
    return Cell(text, column.number, classes)


def _remarks(each: Row) -> str:
    """Remarks on a row besides its numbers, escaped."""
    said = [text for text in (each.reason, each.note) if text]
    if each.strictest_numerics is not None:
        said.append(f"declares no numerics; the strictest that its code allows: {each.strictest_numerics}")
    return "<br>".join(escape(text).replace("\n", "<br>") for text in said)
