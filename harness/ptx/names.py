"""Names of variables in PTX, and the names in the source that compilers made them from."""

from __future__ import annotations

import re

_LAST_PART = re.compile(r"E\d+([A-Za-z_]\w*?)(?:E|(?:_\$)?_\d+)?$")
"""Length and text of the last part of a mangled C++ name."""


def source_name(name: str) -> str:
    """The last part of a mangled C++ name, which the author wrote: `_ZZ1kE5tiles` -> `tiles`. Other names stay."""
    found = _LAST_PART.search(name)
    return found[1] if found else name
