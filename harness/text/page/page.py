"""Renders a page: sections, table of contents, style sheet and scripts, in one self-contained HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from harness.support.printable import printable_json
from harness.text.page.markup import escape
from harness.text.page.resource import resource
from harness.text.page.section import Section


def render_page(title: str, subtitle: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
    """The whole file, with `notes` at its end. Raises `ValueError` for data that JSON cannot represent, such as NaN."""
    style = "\n".join(dict.fromkeys([resource("page.css"), *(s.style for s in sections if s.style)]))
    # The page's own script comes first: sorting and the theme switch work even if a section's script fails.
    own = dict.fromkeys(section.script for section in sections if section.script)
    script = "\n".join(["'use strict';", *(f"(() => {{\n{text}\n}})();" for text in (resource("page.js"), *own))])
    links = "".join(f'<li><a href="#{escape(s.anchor)}">{escape(s.title)}</a></li>' for s in sections)
    parts = "".join(_section(section) for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en" class="no-script">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{_hash(style)}'; \
script-src '{_hash(script)}'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">To the content</a>
<header>
<h1>{escape(title)}</h1>
<p class="subtitle">{escape(subtitle)}</p>
<label class="theme" hidden>Theme <select id="theme"><option value="">as the system</option>\
<option value="light">light</option><option value="dark">dark</option></select></label>
</header>
<nav aria-label="Contents"><ol>{links}</ol></nav>
<main id="content" tabindex="-1">
{parts}
<footer>{"".join(f"<p>{escape(note)}</p>" for note in notes)}</footer>
</main>
{"".join(_data(key, value) for section in sections for key, value in section.data.items())}
<script>{script}</script>
</body>
</html>
"""


def _section(section: Section) -> str:
    anchor = escape(section.anchor)
    return (
        f'<section id="{anchor}" aria-labelledby="{anchor}-title">'
        f'<h2 id="{anchor}-title">{escape(section.title)}</h2>\n{section.html}\n</section>\n'
    )


def _data(key: str, value: Any) -> str:
    """JSON that is safe within HTML: `<` and `>` are written as JSON escapes.

    Characters that are not printable are escaped, since scripts show texts unchanged.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    text = printable_json(text).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{escape(key)}-data">{text}</script>\n'


def _hash(text: str) -> str:
    """The hash by which the page's content security policy allows its style sheet and script."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
