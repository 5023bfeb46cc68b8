"""Parses numbers strictly, and counts things; some forms that Python's `int` and `float` accept are rejected.

`int` accepts digits of every script and underscores, and very long numbers raise an unrelated error.
"""

from __future__ import annotations

import re

MOST_DIGITS = 18
"""Maximum digits of a whole number: a number below 10^18 fits into 64 bits."""
_WHOLE_NUMBER = re.compile(rf"[+-]?[0-9]{{1,{MOST_DIGITS}}}")
_NUMBER = re.compile(
    r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})(e[+-]?[0-9]{1,4})?|[+-]?(nan|inf|infinity)", re.I
)
_SHOWN = 40


def whole_number(text: str) -> int:
    """Parse a whole number. Raises `ValueError` if `text` is none."""
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is not a whole number of at most {MOST_DIGITS} digits")
    return int(text)


def real_number(text: str) -> float:
    """Parse a number, including nan and inf, which range checks reject. Raises `ValueError` if `text` is none."""
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is not a number")
    return float(text)


def shown(text: str) -> str:
    """Quote `text` for a message, truncated if it is long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")


def counted(number: int, noun: str) -> str:
    """Such as `1 place`, `2 places`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
