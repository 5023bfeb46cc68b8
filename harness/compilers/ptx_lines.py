"""PTX with no line table -> PTX whose line table is its own lines, so that counts and faults have a place to name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.compilers.source_place import place_of

_LOC = re.compile(r"^[ \t]*\.loc\b", re.MULTILINE)
_FILE = re.compile(r"^[ \t]*\.file\s+(\d{1,9})\b", re.MULTILINE | re.ASCII)
_TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|"[^"\n]*"|[{};=]|[^\s{};=/"]+|/', re.DOTALL)


def with_own_lines(ptx: str, name: str) -> str:
    """`ptx`, with a `.loc` in front of the first instruction of each line; as it is where it has line information.

    The lines are those of the user's file where the text stands in one, else those of a file called `name`.ptx.

    Before: `add.s32 %r1, %r1, 1;`. After: `.loc 1 12 1 add.s32 %r1, %r1, 1;`, and at the end of the text
    `.file 1 "/home/me/kernel.ptx"`. Nothing moves to another line, so that messages about the PTX still fit.
    """
    if _LOC.search(ptx):
        return ptx
    file, first_line = place_of(ptx) or (f"{name}.ptx", 1)
    number = 1 + max((int(match[1]) for match in _FILE.finditer(ptx)), default=0)
    parts: list[str] = []
    copied = 0
    line, counted = first_line, 0
    marked = 0
    for position in _instructions(ptx):
        line += ptx.count("\n", counted, position)
        counted = position
        if line != marked:
            parts += [ptx[copied:position], f".loc {number} {line} 1 "]
            copied, marked = position, line
    quoted = file.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(parts) + ptx[copied:] + f'\n.file {number} "{quoted}"\n'


def _instructions(ptx: str) -> Iterator[int]:
    """Where each instruction begins: what follows `;`, a block's brace or a label, and is no directive."""
    depth = 0
    initial_values = 0
    starts = False
    before = ""
    for match in _TOKEN.finditer(ptx):
        token = match[0]
        if token.startswith(("//", "/*")):
            continue
        if depth == 0:
            if initial_values or (token == "{" and before == "="):
                initial_values += (token == "{") - (token == "}")
            elif token == "{":
                depth, starts = 1, True
        elif token == ";":
            starts = True
        elif not starts:
            pass  # operands; the braces among them are vectors
        elif token in "{}":
            depth += 1 if token == "{" else -1
        elif not token.endswith(":"):  # a label
            if not token.startswith("."):
                yield match.start()
            starts = False
        before = token
