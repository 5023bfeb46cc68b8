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
      (?P<skip>[ \t\r]+|//[^\n]*)
    | (?P<newline>\n)
    | (?P<comment>/\*.*?\*/)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?)
    | (?P<dot>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<word>[%$A-Za-z_][A-Za-z0-9_$]*)
    | (?P<mark>[{}()\[\];:,@!|+\-<>=*])
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)


def tokenize(text: str) -> list[Token]:
    """Split PTX into tokens; comments and blanks are gone. Raises `CompileError` at a character PTX does not have."""
    tokens: list[Token] = []
    line = 1
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CompileError(f"PTX line {line}: unexpected character {text[position]!r}")
        kind = match.lastgroup
        position = match.end()
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match.group().count("\n")
        elif kind != "skip":
            assert kind is not None
            tokens.append(Token(kind, match.group(), line))
    return tokens
