"""Renders the Jinja templates in this folder, with their filters, such as the colours of source lines.

Texts are escaped for HTML, and characters that are not printable by `printable`.
"""

from __future__ import annotations

import functools
import json
import math
import re
from typing import TYPE_CHECKING, Any

from harness.support.printable import printable, printable_json
from harness.text.tables import UNKNOWN, mib

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


_IN_BACKTICKS = re.compile(r"`([^`<\n]+)`")
HEATS = 10
"""Shades of a heat map, besides none."""


def render(template: str, **values: Any) -> str:
    """Render the template, such as `page.html`. Raises `ValueError` for data without a form in JSON, such as NaN."""
    return environment().get_template(template).render(values)


KEYWORDS = {
    "cuda": (
        "asm auto bool break case char class const constexpr continue default delete do double else enum extern false "
        "float for goto if inline int long namespace new nullptr operator private public return short signed sizeof "
        "static struct switch template this true typedef typename union unsigned using void volatile while "
        "__device__ __global__ __host__ __restrict__ __shared__ __constant__ __launch_bounds__ __forceinline__"
    ),
    "python": (
        "False None True and as assert async await break class continue def del elif else except finally for from "
        "global if import in is lambda nonlocal not or pass raise return try while with yield"
    ),
}
_STRING = r'"(?:\\.|[^"\\])*"' + r"|'(?:\\.|[^'\\])*'"
_COMMENT = {"cuda": r"//.*|/\*.*?(?:\*/|$)", "python": r"#.*"}
_DIRECTIVE = {"cuda": r"^\s*#\s*\w+", "python": r"^\s*@[\w.]+"}
_TOKENS = {
    language: re.compile(
        rf"(?P<comment>{_COMMENT[language]})|(?P<string>{_STRING})"
        rf"|(?P<keyword>{_DIRECTIVE[language]}|\b(?:{'|'.join(words.split())})\b)"
    )
    for language, words in KEYWORDS.items()
}


def coloured(line: str, file: str) -> Markup:
    """The line as HTML, with spans of the classes `comment`, `string` and `keyword`.

    The language follows from the name of the file: Python for `.py`, else CUDA. Texts that go over several lines, such
    as docstrings, are not recognized.
    """
    from markupsafe import Markup, escape

    html, end = Markup(), 0
    for token in _TOKENS["python" if file.endswith(".py") else "cuda"].finditer(line):
        html += escape(printable(line[end : token.start()]))
        html += Markup('<span class="{}">{}</span>').format(token.lastgroup, printable(token[0]))
        end = token.end()
    return html + escape(printable(line[end:]))


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
