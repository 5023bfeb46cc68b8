"""Converts the names of variables in PTX to the names in the source."""

from __future__ import annotations

import re

_LAST_PART = re.compile(r"E\d+([A-Za-z_]\w*?)(?:E|(?:_\$)?_\d+)?$")
"""Matches the last part of a mangled C++ name, with its length."""


def source_name(name: str) -> str:
    """Return the last part of a mangled C++ name, as written in the source: `_ZZ1kE5tiles` -> `tiles`.

    Other names are returned unchanged.
    """
    found = _LAST_PART.search(name)
    return found[1] if found else name
