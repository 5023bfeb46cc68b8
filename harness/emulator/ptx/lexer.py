"""PTX text -> tokens that know their line."""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.support.errors import CompileError

_SHOWN = 40
"""Characters of a word that a message repeats."""


class Token(NamedTuple):
    """One word of PTX."""

    kind: str
    """`word`, `dot` (a word that starts with a dot), `number`, `string` or `mark`."""
    text: str
    line: int

    @property
    def shown(self) -> str:
        """For messages: what is there, but not all of it where it is long."""
        return self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."


_TOKEN = re.compile(
    r"""
    [ \t\r]*
    (?:
      (?P<newline>\n[ \t\r\n]*)
    | (?P<dot>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<word>[%$A-Za-z_][A-Za-z0-9_$]*)
    | (?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?)
    | (?P<mark>[{}()\[\];:,@!|+\-<>=*])
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<end>\Z)
    )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def tokenize(text: str) -> list[Token]:
    """Split PTX into tokens; comments and blanks are gone. Raises `CompileError` at a character PTX does not have."""
    tokens: list[Token] = []
    line = 1
    position = 0
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break  # what lies between is no token
        position = match.end()
        kind = match.lastgroup
        assert kind is not None
        if kind == "newline" or kind == "comment":
            line += match[kind].count("\n")
        elif kind != "end":
            tokens.append(Token(kind, match[kind], line))
    if position < len(text):
        rest = text[position:].lstrip(" \t\r")
        raise CompileError(f"PTX line {line}: unexpected character {rest[0]!r}")
    return tokens
