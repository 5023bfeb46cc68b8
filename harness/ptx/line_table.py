"""Adds a line table to PTX that has none. It refers to the PTX itself, so that counts and faults have a source line."""

from __future__ import annotations

import re

from harness.ptx.statements import functions, statements

_LOCATION = re.compile(r"^[ \t]*\.loc\b", re.MULTILINE)
_FILE = re.compile(r"^[ \t]*\.file\s+(\d{1,9})\b", re.MULTILINE | re.ASCII)


def has_line_table(ptx: str) -> bool:
    """Whether the text has line information."""
    return _LOCATION.search(ptx) is not None


def with_line_table(ptx: str, file: str, first_line: int) -> str:
    """Insert a `.loc` before the first instruction of each line. `ptx` begins at `first_line` of `file`.

    Before: `add.s32 %r1, %r1, 1;`. After: `.loc 1 12 1 add.s32 %r1, %r1, 1;`, and at the end of the text `.file 1
    "/home/me/kernel.ptx"`. Line numbers do not change, so those in messages stay valid.
    """
    number = 1 + max((int(match[1]) for match in _FILE.finditer(ptx)), default=0)
    parts: list[str] = []
    copied = 0
    line, counted = first_line, 0
    marked = 0
    for statement in (each for function in functions(ptx) for each in statements(ptx, function)):
        if statement.kind != "instruction":
            continue
        line += ptx.count("\n", counted, statement.start)
        counted = statement.start
        if line != marked:
            parts += [ptx[copied:counted], f".loc {number} {line} 1 "]
            copied, marked = counted, line
    quoted = file.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(parts) + ptx[copied:] + f'\n.file {number} "{quoted}"\n'
