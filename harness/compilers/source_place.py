"""Locates the source of a kernel in the user's files, so that messages and line tables refer to the user's own lines.

A `RawKernel` or a `PtxKernel` holds only its text. The text, or most of its lines, is searched for in the files of the
loaded modules and in the CUDA and PTX files of the same folders. Installed packages are excluded.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from harness.support.source_text import find_source

_CUDA_SUFFIXES = (".cu", ".cuh", ".h", ".hpp")
_SUFFIXES = (*_CUDA_SUFFIXES, ".ptx")
_FEWEST_LINES = 2
"""Minimum lines that must be found in a file for it to be considered the source."""
_FEWEST_LETTERS = 6
_RELATIVE_NAME = re.compile(r'^(?P<before>#line \d+ ")(?P<name>[^"/\\<][^"\\]*)"', re.MULTILINE)


def place_of(text: str) -> tuple[str, int] | None:
    """Return the file that contains `text` and the line at which it begins there; None if no file does."""
    for path in _user_files():
        content = _text(path, *_stamp(path))
        position = content.find(text)
        if position >= 0:
            return path, content.count("\n", 0, position) + 1
    return None


def with_line_directive(code: str) -> str:
    """Insert a `#line` directive before the part of `code` that is found in a file.

    Before: `extern "C" __global__ ...`. After: `#line 12 "/home/me/my_idea.py"`, then the same text. Code that has a
    `#line` already, or is not found, is returned unchanged.
    """
    if "#line" in code or not code.strip():
        return code
    # Search again if more modules are loaded or the file has been edited.
    found = _found_in_files(code, len(sys.modules))
    if found.stamp != _stamp(found.path):
        _found_in_files.cache_clear()
        found = _found_in_files(code, len(sys.modules))
    return found.text


class _Found(NamedTuple):
    """The code of a kernel with its `#line`."""

    text: str
    path: str
    """The file that contains the code; empty if none does."""
    stamp: tuple[int, int]
    """Modification time in ns and size in bytes of the file when it was read."""


@functools.lru_cache(maxsize=64)
def _found_in_files(code: str, _modules: int) -> _Found:
    for path in _user_files():
        text = _text(path, *_stamp(path))
        if path.endswith(_CUDA_SUFFIXES):  # the file was read as a whole, and text may have been put before it
            before, found, after = code.partition(text) if text.strip() else (code, "", "")
            line = 1
        else:  # the code is a string in a Python file
            position = text.find(code)
            before, found, after = "", code if position >= 0 else "", ""
            line = text.count("\n", 0, position) + 1
        if found:
            separator = "" if not before or before.endswith("\n") else "\n"
            return _Found(f'{before}{separator}#line {line} "{_quoted(path)}"\n{found}{after}', path, _stamp(path))
    return _aligned(code)


@functools.lru_cache(maxsize=64)
def with_absolute_names(code: str) -> str:
    """Make every relative file name in a `#line` absolute, if the file is found.

    The compiled code then does not depend on the working directory, and is compiled once for all directories.
    """

    def absolute(match: re.Match[str]) -> str:
        path, name = find_source(match["name"]), match["name"]
        if path is None or not path.as_posix().endswith(f"/{name}"):
            return match[0]
        return f'{match["before"]}{_quoted(str(path))}"'

    return _RELATIVE_NAME.sub(absolute, code)


@functools.lru_cache(maxsize=64)
def has_absolute_names(code: str) -> bool:
    """Whether every line of `code` belongs to a file with an absolute name."""
    return code.startswith("#line") and _RELATIVE_NAME.search(code) is None


def _aligned(code: str) -> _Found:
    """Insert a `#line` wherever consecutive lines of `code` are not consecutive in the file that contains most of them.

    This is the case if a function builds the kernel, by filling in a template or prepending definitions. A line that
    was filled in counts as the successor of the line before it. The code is unchanged if no file contains half of its
    lines.
    """
    lines = code.split("\n")
    keys = [_key(line) for line in lines]
    telling = {key for key in keys if _tells(key)}
    nearest, most = "", max(_FEWEST_LINES, (len(telling) + 1) // 2) - 1
    for path in _user_files():
        shared = len(telling & _telling_lines(path, *_stamp(path)))
        if shared > most:
            nearest, most = path, shared
    stamp = _stamp(nearest)
    if not nearest:
        return _Found(code, nearest, stamp)
    theirs = [_key(line) for line in _text(nearest, *stamp).split("\n")]
    blocks = SequenceMatcher(lambda key: not _tells(key), keys, theirs, autojunk=False).get_matching_blocks()
    name = _quoted(nearest)
    directives: dict[int, int] = {}
    ahead = None  # line number in the file minus line number in the code
    for first, theirs_first, size in blocks:
        if any(map(_tells, keys[first : first + size])) and theirs_first - first != ahead:
            at = 0 if ahead is None else first
            ahead = theirs_first - first
            if not (at and lines[at - 1].endswith("\\")):  # not within a macro
                directives[at] = max(1, at + ahead + 1)
    text = "\n".join(
        f'#line {directives[at]} "{name}"\n{line}' if at in directives else line for at, line in enumerate(lines)
    )
    return _Found(text, nearest, stamp)


def _quoted(path: str) -> str:
    """Escape `path` for the quotes of a `#line`."""
    return path.replace("\\", "\\\\").replace('"', '\\"')


def _key(line: str) -> str:
    """Normalize a line for comparison: replace the doubled braces of f-strings, and remove indentation."""
    return line.strip().replace("{{", "{").replace("}}", "}")


def _tells(key: str) -> bool:
    """Whether a line is distinctive, unlike a line such as `}` that occurs everywhere."""
    return sum(character.isalnum() for character in key) >= _FEWEST_LETTERS


@functools.lru_cache(maxsize=1024)
def _telling_lines(path: str, mtime_ns: int, size_bytes: int) -> frozenset[str]:
    keys = map(_key, _text(path, mtime_ns, size_bytes).split("\n"))
    return frozenset(key for key in keys if _tells(key))


def _user_files() -> Iterator[str]:
    folders: dict[str, None] = {}
    installed = (os.path.join(sys.prefix, ""), os.path.join(sys.base_prefix, ""))
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.endswith(".py") and not path.startswith(installed):
            if f"{os.sep}site-packages{os.sep}" in path or f"{os.sep}dist-packages{os.sep}" in path:
                continue
            yield os.path.abspath(path)
            folders[os.path.dirname(os.path.abspath(path))] = None
    for folder in folders:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        yield from (os.path.join(folder, name) for name in names if name.endswith(_SUFFIXES))


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1024)
def _text(path: str, _mtime_ns: int, _size_bytes: int) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
