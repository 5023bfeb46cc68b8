"""A command's output, independent of the format: a table for people, markdown, csv or json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill, wrap
from typing import Any, Generic, TypeVar

from harness.execution.judging.verdict import ERROR, FAIL
from harness.support.printable import printable
from harness.support.version import with_version
from harness.text.column_meanings import explained
from harness.text.tables import Styled, csv_text, json_text, table
from harness.text.terminal import PLAIN, Terminal

Row = TypeVar("Row")

NOTE_WIDTH = 120
"""Largest number of characters per line of notes."""
KEPT_COLUMNS = 2
"""Columns of a table that are shown at any width."""
LEAST_TEXT = 28
"""Characters to which a text is cut before a column is left out: more than the name of a variant has."""
LEAST_LAST_TEXT = 14
"""The same for the last column of texts, such as a description."""
GAP = 2
"""Blanks between two columns."""
DOTS = "..."


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table whose lines are of one kind."""

    header: str
    """Header, including the unit."""
    cell: Callable[[Row], str]
    """Function that formats a line's cell."""
    number: bool = True
    """Whether the column is right-aligned."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under headers."""

    headers: Sequence[str]
    """Headers. A line break in one becomes a blank in markdown, or nothing after a hyphen."""
    cells: Sequence[Sequence[str]]
    numbers: Sequence[bool]
    """Which columns are right-aligned."""
    expendable: Sequence[str] = ()
    """Headers of the columns that a narrow terminal can do without, the first to go first."""

    @classmethod
    def of(cls, columns: Sequence[Column[Row]], rows: Iterable[Row], expendable: Sequence[str] = ()) -> Table:
        """A table with a line for each of `rows`."""
        cells = [[column.cell(row) for column in columns] for row in rows]
        return cls([column.header for column in columns], cells, [column.number for column in columns], expendable)

    def text(self, markdown: bool) -> str:
        """The table without a final line break."""
        headers = [header.replace("-\n", "-") for header in self.headers] if markdown else self.headers
        return table(headers, self.cells, self.numbers, markdown)

    def fitted(self, terminal: Terminal) -> tuple[str, Sequence[str]]:
        """The table in a terminal's width, without a final line break, and the columns that were left out for that.

        Long texts are cut first. If that is not enough, expendable columns are left out, then others from the right.
        """
        widths = [
            max((len(line) for cell in (header, *cells) for line in cell.splitlines()), default=0)
            for header, *cells in zip(self.headers, *self.cells)
        ]
        kept = [*range(len(widths))]
        order = [self.headers.index(header) for header in self.expendable if header in self.headers]
        order += [place for place in reversed(kept[KEPT_COLUMNS:]) if place not in order]
        left_out: list[int] = []
        if terminal.width is not None:
            least = [width if number else min(width, LEAST_TEXT) for width, number in zip(widths, self.numbers)]
            if texts := [place for place in kept[KEPT_COLUMNS:] if not self.numbers[place]]:
                least[texts[-1]] = min(least[texts[-1]], LEAST_LAST_TEXT)
            while order and _line_width(least, kept) > terminal.width:
                left_out.append(order.pop(0))
                kept.remove(left_out[-1])
            _narrow(widths, least, kept, terminal.width)
            tiny = [width if number else len(DOTS) for width, number in zip(widths, self.numbers)]
            _narrow(widths, tiny, kept, terminal.width)
        cells = [[_cut(line[place], widths[place]) for place in kept] for line in self.cells]
        if "verdict" in self.headers and self.headers.index("verdict") in kept:
            place = kept.index(self.headers.index("verdict"))
            cells = [[*line[:place], Styled(terminal.verdict(line[place])), *line[place + 1 :]] for line in cells]
        text = table([self.headers[place] for place in kept], cells, [self.numbers[place] for place in kept])
        return text, [" ".join(self.headers[place].split()) for place in left_out]


def _line_width(widths: Sequence[int], places: Sequence[int]) -> int:
    return sum(widths[place] + GAP for place in places) - GAP


def _narrow(widths: list[int], least: Sequence[int], kept: Sequence[int], most: int) -> None:
    """Reduce the `kept` columns, from the right and to `least`, until a line has at most so many characters."""
    for place in reversed(kept):
        excess = max(0, _line_width(widths, kept) - most)
        widths[place] = max(least[place], widths[place] - excess)


def _cut(cell: str, width: int) -> str:
    """The cell, with its end replaced by dots if it is longer than `width`."""
    if all(len(line) <= width for line in cell.splitlines()):
        return cell
    return cell[: max(0, width - len(DOTS))].rstrip() + DOTS


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

    def render(self, format: str, terminal: Terminal = PLAIN, explain: bool = False) -> str:
        """Render in one of `tables.FORMATS`, ending in a line break.

        For people, characters that are not printable are escaped, `table` is laid out for the `terminal`, and with
        `explain`, the meaning of every column follows.
        """
        if format == "json":
            return json_text(with_version(self.document()))
        if format == "csv":
            return csv_text(*self.records())
        if format == "markdown":
            parts = [part if isinstance(part, str) else part.text(True) for part in self.paragraphs()]
            parts.append("\n\n".join([*self.notes(), *(self._meanings() if explain else ())]))
            return printable("\n\n".join(part for part in parts if part)) + "\n"
        return "\n\n".join(part for part in self._for_terminal(terminal, explain) if part) + "\n"

    def _meanings(self) -> list[str]:
        """The meaning of every column, after a title."""
        tables = [part for part in self.paragraphs() if isinstance(part, Table)]
        lines = [*explained(header for table in tables for header in table.headers)]
        return ["Columns:", *lines] if lines else []

    def _for_terminal(self, terminal: Terminal, explain: bool) -> Iterator[str]:
        """The paragraphs and then the notes."""
        left_out: list[str] = []
        for part in self.paragraphs():
            if isinstance(part, Table):
                text, columns = part.fitted(terminal)
                left_out += [name for name in columns if name not in left_out]
            else:
                text = _wrapped(printable(part if isinstance(part, str) else part.text(False)), terminal.width)
            yield text
        notes = [*self.notes()]
        if left_out:
            notes.insert(
                0, f"Columns that do not fit: {', '.join(left_out)}. A wider terminal or a pipe shows all columns."
            )
        if self.wraps_notes or terminal.width is not None:
            width = min(NOTE_WIDTH, terminal.width or NOTE_WIDTH)
            notes = ["\n".join(_wrapped(line, width) for line in unbroken(note).splitlines()) for note in notes]
        yield printable("\n".join(notes))
        if explain:
            width = min(NOTE_WIDTH, terminal.width or NOTE_WIDTH)
            yield "\n".join(_wrapped(line, width) for line in self._meanings())


_BROKEN_LINE = re.compile(r"\n(?! )")


def unbroken(note: str) -> str:
    """The note without the line breaks of a text that was wrapped; indented lines are kept apart."""
    return _BROKEN_LINE.sub(" ", note)


def _joined(lines: Sequence[str]) -> list[str]:
    """The lines, without the breaks at which a text was wrapped at `NOTE_WIDTH`: before a word that does not fit."""
    joined: list[str] = []
    for above, line in zip(("", *lines), lines):
        if joined and line[:1].strip() and len(f"{above} {line.split()[0]}") > NOTE_WIDTH:
            joined[-1] += f" {line}"
        else:
            joined.append(line)
    return joined


def _wrapped(text: str, width: int | None) -> str:
    """Text whose lines have at most `width` characters, if it is known. A line's indentation is kept."""
    if width is None:
        return text
    lines = []
    for line in _joined(text.splitlines()):
        indentation = line[: len(line) - len(line.lstrip())]
        lines += (
            [line] if len(line) <= width else wrap(line, width, subsequent_indent=indentation, break_on_hyphens=False)
        )
    return "\n".join(lines)


def wrong_answer(variant: str, verdict: str | None, reason: str | None) -> str | None:
    """The warning paragraph for a variant; None unless its verdict is `fail` or `error`."""
    if verdict not in (FAIL, ERROR):
        return None
    text = f"WRONG: {variant}: {verdict}: {' '.join((reason or '').split())}. The figures below are of a wrong kernel."
    return fill(text, NOTE_WIDTH, break_long_words=False, break_on_hyphens=False)
