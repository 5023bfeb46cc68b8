"""Numbers that a user writes: what Python's own `int` and `float` take besides is refused.

`int` reads digits of every script and underscores, and has no limit but one that is an error of its own.
"""

from __future__ import annotations

import re

MOST_DIGITS = 18
"""Of a whole number: what is below 10^18 fits into 64 bits wherever it is kept."""
_WHOLE_NUMBER = re.compile(rf"[+-]?[0-9]{{1,{MOST_DIGITS}}}")
_NUMBER = re.compile(
    r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})(e[+-]?[0-9]{1,4})?|[+-]?(nan|inf|infinity)", re.I
)
_SHOWN = 40


def whole_number(text: str) -> int:
    """`text` as a whole number. Raises `ValueError` where it is none."""
    if not _WHOLE_NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is not a whole number of at most {MOST_DIGITS} digits")
    return int(text)


def real_number(text: str) -> float:
    """`text` as a number; nan and inf are some, for ranges to refuse. Raises `ValueError` where it is none."""
    if not _NUMBER.fullmatch(text.strip()):
        raise ValueError(f"{shown(text)} is not a number")
    return float(text)


def shown(text: str) -> str:
    """`text` in quotes for a message, cut where it is long."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
