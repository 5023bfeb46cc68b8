"""Marks comments, strings and keywords of a line of CUDA C++ or Python, for a style sheet to colour."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.support.printable import printable

if TYPE_CHECKING:
    from markupsafe import Markup

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
