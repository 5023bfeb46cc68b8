"""PTX text -> tokens that know their line.

Nearly all of a kernel are instructions on a line of their own, which come as one token each: who reads them as a whole
(`plain_instructions.py`) is done several times as fast. So do lines of bytes for debuggers, which nobody reads at all.
To everybody else they are the tokens that they consist of.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness.support.errors import CompileError

_SHOWN = 40
"""Characters of a word that a message repeats."""


class Token(NamedTuple):
    """One word of PTX, or several in one piece."""

    kind: str
    """`word`, `dot` (a word that starts with a dot), `number`, `string`, `mark`; of several: `instruction`, `bytes`."""
    text: str
    line: int

    @property
    def shown(self) -> str:
        """For messages: what is there, but not all of it where it is long."""
        return self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."


INSTRUCTION, BYTES = PIECES = ("instruction", "bytes")
_OPERANDS = r"[%$A-Za-z0-9_,+\-\[\]|!\ \t]*"
"""No dots, so that no directive is in there, and no parentheses, for calls are on several lines anyway."""
_PIECES = rf"""
      (?P<{BYTES}>\.b8[ ]\d{{1,9}}(?:,\d{{1,9}})*)(?=\n)
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
    """Split PTX into tokens; comments and blanks are gone. Raises `CompileError` at a character PTX does not have."""
    tokens: list[Token] = []
    line = 1
    position = 0
    may_begin = False
    in_location = False
    for match in _TOKEN.finditer(text):
        if match.start() != position:
            break  # what lies between is no token
        position = match.end()
        kind = match.lastgroup
        assert kind is not None
        if kind == INSTRUCTION:
            if may_begin:
                tokens.append(Token(INSTRUCTION, match[kind], line))
            else:
                tokens += words_of(match[kind], line)
                may_begin = True
        elif kind == "newline" or kind == "comment":
            line += match[kind].count("\n")
            if in_location and kind == "newline":  # a `.loc` ends with its line
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
    """The tokens of several words in one piece."""
    found = ((match.lastgroup, match) for match in _WORD.finditer(piece))
    return [Token(kind, match[kind], line) for kind, match in found if kind is not None and kind != "end"]
