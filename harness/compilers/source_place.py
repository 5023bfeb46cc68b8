"""Where a kernel's text stands in the user's files, so that messages and line tables name the user's own lines.

A `RawKernel` or a `PtxKernel` knows its text only. The text is looked up in the files of the modules that are loaded
and in the CUDA and PTX files beside them; installed packages are left out.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator

_CUDA_SUFFIXES = (".cu", ".cuh", ".h", ".hpp")
_SUFFIXES = (*_CUDA_SUFFIXES, ".ptx")


def place_of(text: str) -> tuple[str, int] | None:
    """The file that holds `text` as it is, and the line where it begins there; None where none does."""
    for path in _user_files():
        content = _text(path, *_stamp(path))
        position = content.find(text)
        if position >= 0:
            return path, content.count("\n", 0, position) + 1
    return None


def with_line_directive(code: str) -> str:
    """`code`, with a `#line` in front of what is found in a file; as it is where it has `#line` or is not found.

    Before: `extern "C" __global__ ...`. After: `#line 12 "/home/me/my_idea.py"`, then the same.
    """
    if "#line" in code or not code.strip():
        return code
    for path in _user_files():
        text = _text(path, *_stamp(path))
        if path.endswith(_CUDA_SUFFIXES):  # read whole, perhaps with something put before it
            before, found, after = code.partition(text) if text.strip() else (code, "", "")
            line = 1
        else:  # written inside of a Python file
            position = text.find(code)
            before, found, after = "", code if position >= 0 else "", ""
            line = text.count("\n", 0, position) + 1
        if found:
            name = path.replace("\\", "\\\\").replace('"', '\\"')
            separator = "" if not before or before.endswith("\n") else "\n"
            return f'{before}{separator}#line {line} "{name}"\n{found}{after}'
    return code


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
