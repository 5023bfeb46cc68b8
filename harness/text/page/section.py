"""A section of a page: what it shows, the data that its script reads, and that script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Section:
    """One part of a page, under a heading of its own.

    On the page `data["x"]` stands as JSON in `<script type="application/json" id="x-data">`. Scripts run once, when all
    of the page is there, each in a function of its own. The document gets an event `themechange` when colours change:
    whoever draws draws anew, with the variables of the style sheet. Attributes like `style` and `onclick` are refused
    by the page's own policy; a script may set styles.
    """

    anchor: str
    """Its `id`, which links within the page name."""
    title: str
    """The heading's text, not yet escaped."""
    html: str
    """What stands under the heading, escaped already."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What `script` reads, in JSON's types, by the `id` of the element that it belongs to."""
    script: str = ""
    """JavaScript that brings this section to life; a page holds each text once, however many sections have it."""
    style: str = ""
    """CSS that only this section needs; a page holds each text once."""
