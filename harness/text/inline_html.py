"""Renders a `Report` as an HTML fragment within another page, such as the output of a notebook's cell."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.text.page.markup import escape
from harness.text.report import Paragraph, Report, Table, Title, Verbatim

# If the page has no style for tables, cells would touch; digits of numbers are aligned.
_CELL = "padding:2px 8px;vertical-align:bottom;"
_NUMBER = f"{_CELL}text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"
_TEXT = f"{_CELL}text-align:left"
_BROKEN_LINE = re.compile(r"\n(?! )")
"""A line break in a note that was wrapped for a terminal; indented lines are kept apart."""


def inline_html(report: Report) -> str:
    """The content of `Report.render` for people, without scripts, colours or page-wide styles."""
    parts = [_paragraph(part) for part in report.paragraphs() if part]
    notes = "".join(f"<p>{_lines(_BROKEN_LINE.sub(' ', note))}</p>" for note in report.notes() if note)
    return "<div>" + "\n".join(parts) + (f"\n<small>{notes}</small>" if notes else "") + "</div>"


def _paragraph(part: Paragraph) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Verbatim):
        return f"<pre>{escape(part.lines)}</pre>"
    if isinstance(part, Title):
        return f"<p><strong>{_lines(part.title)}</strong></p>"
    return f"<p>{_lines(part)}</p>"


def _table(part: Table) -> str:
    head = _row("th", [header.replace("-\n", "-") for header in part.headers], part.numbers)
    body = "\n".join(_row("td", cells, part.numbers) for cells in part.cells)
    # Content that is wider than the page scrolls separately.
    rows = f"<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>"
    return f'<div style="overflow-x:auto;margin:0.6em 0">\n<table>\n{rows}\n</table>\n</div>'


def _row(tag: str, cells: Sequence[str], numbers: Sequence[bool]) -> str:
    styles = [_NUMBER if number else _TEXT for number in numbers]
    found = "".join(f'<{tag} style="{style}">{_lines(cell)}</{tag}>' for cell, style in zip(cells, styles))
    return f"<tr>{found}</tr>"


def _lines(text: str) -> str:
    return escape(text).replace("\n", "<br>")
