"""A section of a page: its content, the data that its script reads, and that script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """One part of a page, under a heading of its own.

    On the page `data["x"]` is JSON in `<script type="application/json" id="x-data">`. Scripts run once, after the page
    has loaded, each in a function of its own. The document receives an event `themechange` when colours change; scripts
    that draw have to redraw then, with the variables of the style sheet. Attributes such as `style` and `onclick` are
    blocked by the page's security policy; a script may set styles.
    """

    anchor: str
    """Its `id`, which links within the page use."""
    title: str
    """Text of the heading, not yet escaped."""
    html: str
    """Content under the heading, already escaped."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """JSON data for `script`, by the `id` of the element that it belongs to."""
    script: str = ""
    """JavaScript of this section; identical scripts of several sections are included once."""
    style: str = ""
    """CSS that only this section needs; identical texts are included once."""
    folded: str = ""
    """If not empty, the content is folded, and this text opens it."""
    is_empty: bool = False
    """Whether it only says what is missing. The page of `report` leaves it out."""
