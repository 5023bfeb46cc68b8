"""Renders a `Report` as an HTML fragment within another page, such as the output of a notebook's cell."""

from __future__ import annotations

import re

from harness.text.page.templates import render
from harness.text.report import Report

_BROKEN_LINE = re.compile(r"\n(?! )")
"""A line break in a note that was wrapped for a terminal; indented lines are kept apart."""


def inline_html(report: Report) -> str:
    """The content of `Report.render` for people, without scripts, colours or page-wide styles."""
    parts = [(type(part).__name__, part) for part in report.paragraphs() if part]
    notes = [_BROKEN_LINE.sub(" ", note) for note in report.notes() if note]
    return render("inline_report.html", parts=parts, notes=notes)
