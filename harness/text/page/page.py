"""Renders a page: sections, table of contents, style sheet and scripts, in one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render


def render_page(title: str, subtitle: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
    """The whole file, with `notes` at its end. Raises `ValueError` for data that JSON cannot represent, such as NaN."""
    style = "\n".join(dict.fromkeys([resource("page.css"), *(s.style for s in sections if s.style)]))
    # The page's own script comes first: sorting and the theme switch work even if a section's script fails.
    own = dict.fromkeys(section.script for section in sections if section.script)
    script = "\n".join(["'use strict';", *(f"(() => {{\n{text}\n}})();" for text in (resource("page.js"), *own))])
    return render(
        "page.html",
        title=title,
        subtitle=subtitle,
        sections=sections,
        notes=notes,
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
    )


def _hash(text: str) -> str:
    """The hash by which the page's content security policy allows its style sheet and script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
