"""A command's output, independent of the format: a table for people, markdown, csv or json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from harness.support.printable import printable
from harness.support.version import with_version
from harness.text.tables import csv_text, json_text, table

NOTE_WIDTH = 120
"""Characters per line of notes, in a terminal."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers."""

    headers: Sequence[str]
    """Headers. A line break in one becomes a blank in markdown, or nothing after a hyphen."""
    cells: Sequence[Sequence[str]]
    numbers: Sequence[bool]
    """Which columns are right-aligned."""

    def text(self, markdown: bool) -> str:
        """The table without a final line break."""
        headers = [header.replace("-\n", "-") for header in self.headers] if markdown else self.headers
        return table(headers, self.cells, self.numbers, markdown)


@dataclass(frozen=True)
class Verbatim:
    """Text whose line breaks are kept."""

    lines: str

    def text(self, markdown: bool) -> str:
        """The text, fenced in markdown."""
        return f"```text\n{self.lines}\n```" if markdown else self.lines


@dataclass(frozen=True)
class Title:
    """A heading."""

    title: str

    def text(self, markdown: bool) -> str:
        """The heading, bold in markdown."""
        return f"**{self.title}**" if markdown else self.title


Paragraph = str | Table | Verbatim | Title


@dataclass(frozen=True)
class Report:
    """The content of a command's output. Each part is computed only if the format needs it."""

    paragraphs: Callable[[], Sequence[Paragraph]]
    """For people, in order; empty texts are left out."""
    notes: Callable[[], Sequence[str]]
    """Notes that follow the paragraphs."""
    records: Callable[[], tuple[Sequence[Mapping[str, Any]], Sequence[str]]]
    """For csv: rows, and the keys of their columns."""
    document: Callable[[], Mapping[str, Any]]
    """For json: one object, without NaN and infinity."""
    wraps_notes: bool = True
    """Whether notes are wrapped at `NOTE_WIDTH`; otherwise their line breaks are kept."""

    def render(self, format: str) -> str:
        """Render in one of `tables.FORMATS`, ending in a line break.

        For people, characters that are not printable are escaped.
        """
        if format == "json":
            return json_text(with_version(self.document()))
        if format == "csv":
            return csv_text(*self.records())
        markdown = format == "markdown"
        parts = [part if isinstance(part, str) else part.text(markdown) for part in self.paragraphs()]
        notes = list(self.notes())
        if markdown:
            parts.append("\n\n".join(notes))
        else:
            parts.append("\n".join(_filled(note) for note in notes) if self.wraps_notes else "\n".join(notes))
        return printable("\n\n".join(part for part in parts if part)) + "\n"


def _filled(note: str) -> str:
    return fill(note, NOTE_WIDTH, break_on_hyphens=False)
