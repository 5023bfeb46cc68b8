"""HTML building blocks: escaped text, scrolling tables, and shades of heat maps."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.support.printable import printable

HEATS = 10
"""Shades of a heat map, besides none."""


def escape(text: object) -> str:
    """Text escaped for HTML, including attributes; characters that are not printable are escaped (`printable`)."""
    return html.escape(printable(str(text)), quote=True)


def identifier(text: str) -> str:
    """`text` as an `id`: characters other than letters, digits, hyphens and dots become their codes."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else f"_{ord(c):x}_" for c in text)


def heat(share: float | None, colour: str = "warm") -> str:
    """The CSS class of a cell with this share (0 to 1) of the maximum, in a style sheet's colour: `warm`, `bad`."""
    if share is None or math.isnan(share) or share <= 0:
        return ""
    return f"{colour}-{max(1, min(HEATS, math.ceil(HEATS * share)))}"


@dataclass(frozen=True)
class Header:
    """A column header."""

    text: str
    """Text; line breaks are preserved."""
    is_number: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    html: str
    """Content, already escaped."""
    is_number: bool = False
    """Whether it is right-aligned."""
    classes: str = ""
    is_head: bool = False
    """Whether it is the header of its row."""
    span: int = 1
    """Number of columns that it spans."""

    def render(self) -> str:
        """The cell as an HTML element."""
        classes = " ".join(each for each in ("number" if self.is_number else "", self.classes) if each)
        attributes = f' class="{classes}"' if classes else ""
        attributes += f' colspan="{self.span}"' if self.span > 1 else ""
        return f'<th scope="row"{attributes}>{self.html}</th>' if self.is_head else f"<td{attributes}>{self.html}</td>"


def number(text: str, classes: str = "") -> Cell:
    """A cell with a formatted number."""
    return Cell(escape(text), True, classes)


def text_cell(text: object, classes: str = "") -> Cell:
    """A cell with plain text."""
    return Cell(escape(text), classes=classes)


def row(cells: Iterable[Cell], classes: str = "") -> str:
    """A row of a table."""
    kind = f' class="{classes}"' if classes else ""
    return f"<tr{kind}>{''.join(cell.render() for cell in cells)}</tr>"


def table(caption: str, headers: Sequence[Header], rows: Iterable[str], *, sortable: bool = False) -> str:
    """A table that scrolls separately, also by keyboard. `caption` names it for screen readers."""
    heads = "".join(_head(header) for header in headers)
    kind = ' class="sortable"' if sortable else ""
    return scrolling(
        caption,
        f'<table{kind}><caption class="unseen">{escape(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>",
    )


def _head(header: Header) -> str:
    kind = ' class="number"' if header.is_number else ""
    return f'<th scope="col"{kind}>{escape(header.text).replace(chr(10), "<br>")}</th>'


def scrolling(label: str, content: str) -> str:
    """A box that scrolls separately, for content that may be wider than the page."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def paragraph(text: str, classes: str = "note") -> str:
    """Plain text above or below something."""
    return f'<p class="{classes}">{escape(text)}</p>'
