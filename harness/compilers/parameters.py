"""The parameters of the kernels in a PTX text: `.entry name(.param ...)` -> name, types, sizes."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from harness.support.errors import CompileError

_ENTRY = re.compile(r"\.entry\s+([\w$%]+)\s*(?:\(([^)]*)\))?", re.ASCII)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d{1,4})\s+)?\.(?P<type>[a-z]+\d{1,3})\s*(?:\.ptr\b[^,]*?)?"
    r"\s+(?P<name>[\w$%]+)\s*(?:\[(?P<count>\d{1,9})\])?\s*$",
    re.ASCII,
)
_COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
"""A string is matched as well, for what looks like a comment within one is none."""
_SHOWN = 80
"""Characters of a declaration that a message repeats."""
_C_NAMES = {
    "u8": "bool or 8-bit integer",
    "s8": "8-bit integer",
    "u16": "16-bit integer",
    "s16": "16-bit integer",
    "u32": "int32 or uint32",
    "s32": "int32",
    "f32": "float32",
    "u64": "pointer or 64-bit integer",
    "s64": "64-bit integer",
    "f64": "float64",
}


@dataclass(frozen=True)
class Parameter:
    """One `.param` of a kernel."""

    type: str
    """PTX's type without the dot, such as `u64` or `f32`; an aggregate is `b8`."""
    size_bytes: int
    """What a launch has to provide."""
    align_bytes: int
    """Alignment in the parameter space."""
    is_array: bool = False
    """Declared with an extent: a struct, `__half` or the like, passed by value."""

    @property
    def description(self) -> str:
        """What to pass, in words."""
        if self.is_array:
            return f"{self.size_bytes}-byte value"
        return _C_NAMES.get(self.type, f"{self.size_bytes}-byte value")


@functools.lru_cache(maxsize=256)
def entry_parameters(ptx: str) -> Mapping[str, tuple[Parameter, ...]]:
    """Every kernel of the module by its mangled name, with its parameters in order.

    Raises `CompileError` where a parameter is declared in a way that PTX does not have.
    """
    code = _COMMENT.sub(lambda match: match[0] if match[0][0] == '"' else " " + "\n" * match[0].count("\n"), ptx)
    return {
        match[1]: _parameters(match[1], match[2] or "", 1 + code.count("\n", 0, match.start()))
        for match in _ENTRY.finditer(code)
    }


def _parameters(entry: str, text: str, line: int) -> tuple[Parameter, ...]:
    found = []
    for declaration in filter(None, (part.strip() for part in text.split(","))):
        match = _PARAMETER.match(declaration)
        if match is None:
            shown = textwrap.shorten(declaration, _SHOWN, placeholder="...")
            raise CompileError(
                f"kernel {entry}, PTX line {line}: its PTX declares a parameter as {shown!r}; "
                "write it like .param .u64 name"
            )
        element_bytes = int(re.sub(r"\D", "", match["type"])) // 8
        size_bytes = element_bytes * int(match["count"] or 1)
        found.append(
            Parameter(
                type=match["type"],
                size_bytes=size_bytes,
                align_bytes=int(match["align"] or element_bytes),
                is_array=match["count"] is not None,
            )
        )
    return tuple(found)
