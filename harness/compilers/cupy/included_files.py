"""Which of the user's own files a CUDA source includes: their contents belong into the cache's key."""

from __future__ import annotations

import os
import re
from pathlib import Path

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(.*)$", re.MULTILINE)
_TARGET = re.compile(r'["<]([^">]+)[">]')
_DIRECTORY_OPTIONS = ("-I", "--include-path", "-include-path")
_FORCED_INCLUDES = ("-include", "--pre-include", "-pre-include")


def included_files(source: str, options: tuple[str, ...]) -> tuple[str | bytes, ...] | None:
    """Path and content of every file below the user's own `-I` folders that the source includes, directly or not.

    Conditions are not looked at, so some may be too many, none too few. None where that cannot be told: an include
    through a macro, or one that an option forces. Headers of CUDA, CCCL and CuPy change with their versions only.
    """
    directories = _directories(options)
    if directories is None:
        return None
    if not directories:
        return ()
    found: dict[Path, bytes] = {}
    pending = [(source, directories)]
    while pending:
        text, search = pending.pop()
        for rest in _DIRECTIVE.findall(text):
            target = _TARGET.match(rest)
            if target is None:
                return None
            for directory in search:
                path = Path(directory, target[1])
                if path in found or not path.is_file():
                    continue
                found[path] = path.read_bytes()
                pending.append((found[path].decode("utf-8", "replace"), [str(path.parent), *directories]))
                break
    return tuple(part for path in sorted(found) for part in (str(path), found[path]))


def _directories(options: tuple[str, ...]) -> list[str] | None:
    directories = []
    rest = iter(options)
    for option in rest:
        if option.startswith(_FORCED_INCLUDES) and not option.startswith("-include-path"):
            return None
        for prefix in _DIRECTORY_OPTIONS:
            if option.startswith(prefix):
                value = option[len(prefix) :].lstrip("=") or next(rest, "")
                directories.append(os.path.abspath(value))
                break
    return directories
