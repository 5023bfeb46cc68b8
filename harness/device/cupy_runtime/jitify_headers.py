"""Finds the headers of a program for Jitify, which CuPy uses for `jitify=True`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

_INCLUDE = re.compile(rb"^[ \t]*#[ \t]*include[ \t]*<([^>\n]+)>", re.MULTILINE)
_QUOTED = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_ONCE = re.compile(rb"^[ \t]*#[ \t]*pragma[ \t]+once\b[^\n]*", re.MULTILINE)


def find_headers(source: bytes, directories: Iterable[Path]) -> dict[bytes, bytes]:
    """Return name and text of the headers that a program includes as `<name>`, directly or through others.

    Conditions are not evaluated, so there may be more headers than the program needs. Headers that are in none of the
    directories are left out, and so are those included as `"name"`, except by a header at the top of a directory. An
    include guard takes the place of `#pragma once`, which NVRTC does not know in headers without a file.
    """
    places, found = list(directories), dict[bytes, bytes]()
    names = set(_INCLUDE.findall(source))
    while names:
        texts = {name: text for name in names for text in _texts(name, places)}
        found |= texts
        names = {included for name, text in texts.items() for included in _included(name, text)} - set(found)
    return found


def _included(name: bytes, text: bytes) -> list[bytes]:
    quoted: list[bytes] = _QUOTED.findall(text) if b"/" not in name else []
    return _INCLUDE.findall(text) + quoted


def _texts(name: bytes, directories: list[Path]) -> Iterator[bytes]:
    """Yield the text of the header in the first directory that has it, if any does."""
    for directory in directories:
        path = directory / name.decode()
        if path.is_file():
            yield _guarded(name, path.read_bytes())
            return


def _guarded(name: bytes, text: bytes) -> bytes:
    if not _ONCE.search(text):
        return text
    macro = b"HEADER_" + re.sub(rb"\W", b"_", name)
    return b"#ifndef %b\n#define %b\n%b\n#endif\n" % (macro, macro, _ONCE.sub(b"", text))
