"""Shortens mangled names of kernels for messages."""

from __future__ import annotations

import re

_PART = re.compile(r"(\d+)")


def readable_name(entry: str) -> str:
    """The qualified name in a mangled name, without types: `__main__.add` for `_ZN8__main__3addB2v1...`.

    A name that is not mangled is returned as it is. Numba encodes characters such as `<` as `_3c`.
    """
    nested = entry.startswith("_ZN")
    if not entry.startswith("_Z"):
        return entry
    at, parts = 3 if nested else 2, []
    while (match := _PART.match(entry, at)) and len(entry) >= match.end() + int(match[1]):
        end = match.end() + int(match[1])
        parts.append(re.sub(r"_3c|_3e", lambda code: {"_3c": "<", "_3e": ">"}[code[0]], entry[match.end() : end]))
        at = end
        if not nested:
            break
    return ".".join(parts) or entry
