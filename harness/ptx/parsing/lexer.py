"""Splits PTX text into tokens, each with its line number.

Most lines of a kernel hold one instruction, or the source location of the next one. Each becomes a single token,
because reading it as a whole (`plain_instructions.py`, `parser.py`) is several times faster. Lines of bytes for
debuggers, which are skipped, become single tokens as well. All other readers split these tokens into words.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.support.errors import CompileError

_SHOWN = 40
"""Maximum characters of a word that a message quotes."""


class Token(NamedTuple):
    """A word of PTX, or several in one piece."""

    kind: str
    """`word`, `dot` (a word that starts with a dot), `number`, `string` or `mark`; `instruction`, `location` or
    `bytes` for several words."""
    text: str
    line: int

    @property
    def shown(self) -> str:
        """Text for messages, shortened if it is long."""
        return self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."


INSTRUCTION, LOCATION, BYTES = PIECES = ("instruction", "location", "bytes")
_OPERANDS = r"[%$A-Za-z0-9_,+\-\[\]|!\ \t]*"
"""Operands of an instruction in one piece. Excludes dots, so that it contains no directive, and parentheses, since
calls extend over several lines."""
_LINE_AND_COLUMN = r"(?:[ \t]+(?:0|[1-9]\d{0,8})){3}"
"""Numbers of a file, a line and a column."""
_PIECES = rf"""
      (?P<{BYTES}>\.b8[ ]\d{{1,9}}(?:,\d{{1,9}})*)(?=\n)
    | (?P<{LOCATION}>\.loc{_LINE_AND_COLUMN}
        (?:,[ ]function_name[ \t]+[$A-Za-z_][A-Za-z0-9_$]*(?:\+\d{{1,9}})?,[ ]inlined_at{_LINE_AND_COLUMN})?)(?=\n)
    | (?P<{INSTRUCTION}>
        (?:@!?[%$A-Za-z_][A-Za-z0-9_$]*[ \t]+)?
        [a-z][a-z0-9_]*(?:\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)*(?=[ \t;])
        {_OPERANDS}(?:\{{{_OPERANDS}\}}{_OPERANDS})*;)
    |"""
_WORDS = r"""
      (?P<newline>\n[ \t\r\n]*)
    | (?P<dot>\.[A-Za-z0-9_]+(?:::[A-Za-z0-9_]+)*)
    | (?P<word>[%$A-Za-z_][A-Za-z0-9_$]*)
    | (?P<number>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?
        |\d+(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+)|\d+U?)
    | (?P<mark>[{}()\[\];:,@!|+\-<>=*~&^?]|/(?![/*]))
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<end>\Z)
"""
_FLAGS = re.VERBOSE | re.DOTALL | re.ASCII
_TOKEN = re.compile(rf"[ \t\r]*(?:{_PIECES}{_WORDS})", _FLAGS)
_WORD = re.compile(rf"[ \t\r]*(?:{_WORDS})", _FLAGS)
_BEFORE_INSTRUCTIONS = {";", "{", "}", ":"}


def tokenize(text: str) -> list[Token]:
    """Split PTX into tokens without comments and spaces. Raises `CompileError` for an invalid character."""
    tokens: list[Token] = []
    line = 1
    position = 0
    may_begin = False
    in_location = False
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break  # the text up to the next match is not a token
        position = match.end()
        kind = match.lastgroup
        assert kind is not None
        if kind == INSTRUCTION:
            if may_begin:
                tokens.append(Token(INSTRUCTION, match[kind], line))
            else:
                tokens += words_of(match[kind], line)
                may_begin = True
        elif kind == LOCATION:
            tokens.append(Token(LOCATION, match[kind], line))
            may_begin, in_location = False, True
        elif kind == "newline" or kind == "comment":
            line += match[kind].count("\n")
            if in_location and kind == "newline":  # a `.loc` ends at the end of its line
                may_begin, in_location = True, False
        elif kind != "end":
            word = match[kind]
            tokens.append(Token(kind, word, line))
            may_begin = word in _BEFORE_INSTRUCTIONS
            in_location = in_location or word == ".loc"
    if position < len(text):
        rest = text[position:].lstrip(" \t\r")
        raise CompileError(f"PTX line {line}: unexpected character {rest[0]!r}")
    return tokens


def words_of(piece: str, line: int) -> list[Token]:
    """Split a token of several words."""
    found = ((match.lastgroup, match) for match in _WORD.finditer(piece))
    return [Token(kind, match[kind], line) for kind, match in found if kind is not None and kind != "end"]
