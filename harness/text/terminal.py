"""What text for people is laid out for: a terminal's width and colours, or a file."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import Literal, TextIO

ColourChoice = Literal["auto", "always", "never"]
LEAST_WIDTH = 40
"""Narrower terminals are treated as this wide."""
RESET = "\x1b[0m"
COLOURS = {
    "pass": "\x1b[32m",
    "fail": "\x1b[31;1m",
    "error": "\x1b[31;1m",
    "undecided": "\x1b[33m",
    "incomplete": "\x1b[33m",
    "unsupported": "\x1b[2m",
}
"""ANSI escape sequences (SGR) of verdicts: green, bold red, yellow, faint."""


@dataclass(frozen=True)
class Terminal:
    """Width and colours of a terminal."""

    width: int | None = None
    """Characters per line; None for a file or a pipe, whose lines may be of any length."""
    colour: bool = False
    """Whether verdicts are coloured."""

    def verdict(self, word: str) -> str:
        """A verdict in its colour, if colours are used."""
        return f"{COLOURS[word]}{word}{RESET}" if self.colour and word in COLOURS else word


PLAIN = Terminal()
"""A file, without limits and colours."""


def terminal_of(stream: TextIO | None, colour: ColourChoice = "auto") -> Terminal:
    """The terminal that `stream` writes to.

    With `auto`, colours are used on a terminal unless NO_COLOR is set (https://no-color.org) or TERM is `dumb`, and
    elsewhere if FORCE_COLOR is set. The width is $COLUMNS, or the terminal's.
    """
    is_terminal = stream is not None and stream.isatty()
    width = max(LEAST_WIDTH, shutil.get_terminal_size().columns) if is_terminal else None
    if colour != "auto":
        return Terminal(width, colour == "always")
    if os.environ.get("NO_COLOR"):
        return Terminal(width)
    return Terminal(width, bool(os.environ.get("FORCE_COLOR")) or (is_terminal and os.environ.get("TERM") != "dumb"))
