"""PTX without anything that depends on the place or the comments of its source: equal for equal code."""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.ptx.statements import LOCATION

_SOURCE_LINE = re.compile(r"//|\.file\s|\$L__(tmp|func_begin|func_end|info_string)\w*:|\.common .* _ZN08NumbaEnv")
"""How lines begin that describe the source, the author's or Numba's, and mean nothing to the GPU."""
_COMPILER_NAME = re.compile(r"_Z\w+|_cudapy_\w+")
"""Mangled names, which hold a module's path, and shared arrays, which Numba numbers throughout a process."""
_LOCATION = re.compile(rf"{LOCATION}\s*")
"""An instruction may follow on the same line in PTX that was written by hand."""
_COMMENT = re.compile(r"\s*//.*")


def canonical_text(ptx: str) -> str:
    """`ptx` without line tables, files, debugging sections and comments; names that compilers invent become numbers."""
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
