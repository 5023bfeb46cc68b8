"""Pieces of HTML: escaped text, tables that scroll in a box of their own, and how strongly a cell is coloured."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.support.printable import printable

HEATS = 10
"""Shades of a heat map, besides none."""


def escape(text: object) -> str:
    """Text as it may stand in HTML, in attributes too; what is not printable is escaped (`printable`)."""
    return html.escape(printable(str(text)), quote=True)


def identifier(text: str) -> str:
    """`text` as an `id`: what is no letter, digit, hyphen or dot becomes its code."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else f"_{ord(c):x}_" for c in text)


def heat(share: float | None, colour: str = "warm") -> str:
    """The class of a cell that holds such a share, 0 to 1, of the most; a colour of the style sheet: `warm`, `bad`."""
    if share is None or math.isnan(share) or share <= 0:
        return ""
    return f"{colour}-{max(1, min(HEATS, math.ceil(HEATS * share)))}"


@dataclass(frozen=True)
class Header:
    """The head of a column."""

    text: str
    """A line break in it is one in the page, too."""
    is_number: bool = False


@dataclass(frozen=True)
class Cell:
    """One cell of a table."""

    html: str
    """Escaped already."""
    is_number: bool = False
    """Flush right."""
    classes: str = ""
    is_head: bool = False
    """Whether it says what its row is about."""
    span: int = 1
    """Columns that it takes."""

    def render(self) -> str:
        """As an element."""
        classes = " ".join(each for each in ("number" if self.is_number else "", self.classes) if each)
        attributes = f' class="{classes}"' if classes else ""
        attributes += f' colspan="{self.span}"' if self.span > 1 else ""
        return f'<th scope="row"{attributes}>{self.html}</th>' if self.is_head else f"<td{attributes}>{self.html}</td>"


def number(text: str, classes: str = "") -> Cell:
    """A cell with a number, in words of a table for people."""
    return Cell(escape(text), True, classes)


def text_cell(text: object, classes: str = "") -> Cell:
    """A cell with plain text."""
    return Cell(escape(text), classes=classes)


def row(cells: Iterable[Cell], classes: str = "") -> str:
    """A row of a table."""
    kind = f' class="{classes}"' if classes else ""
    return f"<tr{kind}>{''.join(cell.render() for cell in cells)}</tr>"


def table(caption: str, headers: Sequence[Header], rows: Iterable[str], *, sortable: bool = False) -> str:
    """A table in a box that scrolls by itself, which the keyboard reaches. `caption` names it to who cannot see it."""
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
    """What may be wider than the page, in a box of its own."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{content}</div>'


def paragraph(text: str, classes: str = "note") -> str:
    """Plain text under or over something."""
    return f'<p class="{classes}">{escape(text)}</p>'
