"""Finds the text of a source line that a compiler named, and a short name for its file."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path


def source_line(file: str, line: int) -> str | None:
    """The line without surrounding blanks; None if there is no such file or line."""
    lines = source_lines(file)
    return lines[line - 1].strip() if 1 <= line <= len(lines) else None


def source_lines(file: str) -> tuple[str, ...]:
    """All lines of the file; empty if there is no such file."""
    path = find_source(file)
    return () if path is None else _lines(path)


def short_name(file: str) -> str:
    """`file` relative to the current folder or to the Python path; unchanged if it is elsewhere."""
    path = find_source(file)
    if path is None:
        return file
    for root in _roots():
        if path.is_relative_to(root):
            return str(path.relative_to(root))
    return str(path)


@functools.lru_cache(maxsize=256)
def find_source(file: str) -> Path | None:
    """The file itself, or one on the Python path that matches the end of its name.

    A compiler resolves a relative `#line` against its own folder, and its output may come from a cache:
    `/elsewhere/variants/fa2/kernel.cu` is also looked for as `variants/fa2/kernel.cu` on the Python path.
    """
    if not file:
        return None
    path = Path(file)
    if path.is_absolute() and path.is_file():
        return path
    parts = path.parts[1:] if path.is_absolute() else path.parts
    for start in range(len(parts)):
        for root in _roots():
            candidate = root.joinpath(*parts[start:])
            if candidate.is_file():
                return candidate
    return None


def _roots() -> list[Path]:
    return [Path.cwd(), *(Path(os.path.abspath(entry)) for entry in sys.path if os.path.isdir(entry or "."))]


@functools.lru_cache(maxsize=64)
def _lines(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines())
    except OSError:
        return ()
