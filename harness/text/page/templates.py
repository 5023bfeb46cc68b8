"""Renders the Jinja templates in this folder, with their filters.

Texts are escaped for HTML, and characters that are not printable by `printable`.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import TYPE_CHECKING, Any

from harness.support.printable import printable, printable_json
from harness.text.page.syntax_colours import coloured
from harness.text.tables import UNKNOWN, mib

if TYPE_CHECKING:
    from jinja2 import Environment


_IN_BACKTICKS = re.compile(r"`([^`<\n]+)`")
HEATS = 10
"""Shades of a heat map, besides none."""


def render(template: str, **values: Any) -> str:
    """Render the template, such as `page.html`. Raises `ValueError` for data without a form in JSON, such as NaN."""
    return environment().get_template(template).render(values)


@functools.cache
def environment() -> Environment:
    """The environment of all templates. Jinja is imported when the first one is rendered."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    def escaped_lines(text: str) -> Markup:
        return escape(printable(text)).replace("\n", Markup("<br>"))

    made = Environment(
        loader=PackageLoader("harness.text.page", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def prose(text: str) -> Markup:
        """Lines of a message, in which names in backticks are set as code."""
        return Markup(_IN_BACKTICKS.sub(r"<code>\1</code>", str(escaped_lines(text))))

    made.filters.update(prose=prose, heat=heat, identifier=identifier, lines=escaped_lines, mib=mib, coloured=coloured)
    made.globals["UNKNOWN"] = UNKNOWN
    made.policies["json.dumps_function"] = _json
    made.policies["json.dumps_kwargs"] = {}
    return made


def _json(value: Any) -> str:
    """ASCII JSON whose texts are printable, since scripts show them unchanged; `tojson` makes it safe within HTML."""
    return printable_json(json.dumps(value, separators=(",", ":"), allow_nan=False))


def identifier(text: str) -> str:
    """`text` as an `id`: characters other than letters, digits, hyphens and dots become their codes."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-.") else f"_{ord(c):x}_" for c in text)


def heat(share: float | None, colour: str = "warm") -> str:
    """The CSS class of a cell with this share (0 to 1) of the maximum, in a style sheet's colour: `warm`, `bad`."""
    if share is None or math.isnan(share) or share <= 0:
        return ""
    return f"{colour}-{max(1, min(HEATS, math.ceil(HEATS * share)))}"
