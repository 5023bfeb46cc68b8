"""Normalizes PTX: removes everything that depends on the location or the comments of its source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ptx.statements import LOCATION

_SOURCE_LINE = re.compile(r"//|\.file\s|\$L__(tmp|func_begin|func_end|info_string)\w*:|\.common .* _ZN08NumbaEnv")
"""Beginnings of lines that describe the source or Numba's environment and have no effect on the GPU."""
_COMPILER_NAME = re.compile(r"_Z\w+|_cudapy_\w+")
"""Mangled names, which contain a module's path, and shared arrays, which Numba numbers consecutively in a process."""
_LOCATION = re.compile(rf"{LOCATION}\s*")
"""A `.loc`. In handwritten PTX, an instruction may follow on the same line."""
_COMMENT = re.compile(r"\s*//.*")


def canonical_text(ptx: str) -> str:
    """Return `ptx` without line tables, files, debug sections and comments, and with compilers' names numbered."""
    numbers: dict[str, str] = {}

    def numbered(name: re.Match[str]) -> str:
        return numbers.setdefault(name[0], f"_{len(numbers)}")

    return _COMPILER_NAME.sub(numbered, "\n".join(_code_lines(ptx)))


def _code_lines(ptx: str) -> Iterator[str]:
    in_section = False
    for line in map(str.strip, ptx.splitlines()):
        if in_section or line.startswith(".section"):
            in_section = line != "}"
        elif not _SOURCE_LINE.match(line) and (code := _COMMENT.sub("", _LOCATION.sub("", line))):
            yield code
