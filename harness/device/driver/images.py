"""Finds the PTX in what programs load as modules: text, or what the emulated linker has made of text."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

from harness.device.driver import status
from harness.device.driver.status import DriverError

_CUBIN, _FAT_BINARY, _FAT_BINARY_WRAPPER = b"\x7fELF", b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"
_HEADER = re.compile(r"^[ \t]*\.(?:version|target|address_size)\b[^\n]*\n", re.MULTILINE)
_EXTERN_FUNCTION = re.compile(
    r"^[ \t]*\.extern\s+\.func\s*(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\([^)]*\))?\s*;", re.MULTILINE
)
_EXTERN_VARIABLE = re.compile(
    r"^[ \t]*\.extern\s+\.(?:global|const)\b[^;]*?([\w$]+)\s*(?:\[[^\]]*\])?\s*;", re.MULTILINE
)
_DEFINITION = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak)\s+)?"
    r"\.(?:func\s*(?:\([^)]*\)\s*)?|(?:global|const)\b[^;={]*?)([\w$]+)\s*(?=[(\[={;])",
    re.MULTILINE,
)


def ptx_of(address: int) -> str:
    """The PTX of an image in memory. Raises `DriverError` for machine code, which cannot be emulated."""
    if not address:
        raise DriverError(status.INVALID_VALUE)
    start = ctypes.string_at(address, 4)
    if start in (_CUBIN, _FAT_BINARY, _FAT_BINARY_WRAPPER):
        raise DriverError(
            209,
            "the program loads machine code for a GPU (a cubin or fat binary), which cannot be emulated; kernels have "
            "to be given as PTX",
        )
    text = ctypes.string_at(address).decode("utf-8", errors="replace")
    if ".version" not in text:
        raise DriverError(status.INVALID_IMAGE, "the program loads a module that is neither PTX nor machine code")
    return text


def linked(texts: Sequence[str]) -> str:
    """One PTX module with the contents of several.

    The header is the first module's. Declarations of what another module defines are removed. Raises `DriverError` if
    two modules define the same name.
    """
    if len(texts) == 1:
        return texts[0]
    defined: dict[str, int] = {}
    for number, text in enumerate(texts):
        for match in _DEFINITION.finditer(text):
            if defined.setdefault(match[1], number) != number:
                raise DriverError(status.INVALID_PTX, f"two modules that are linked together define {match[1]}")

    def without_declarations(text: str) -> str:
        for pattern in (_EXTERN_FUNCTION, _EXTERN_VARIABLE):
            text = pattern.sub(lambda match: "\n" * match[0].count("\n") if match[1] in defined else match[0], text)
        return text

    first, *others = texts
    # What is linked in comes first, since PTX has to declare a function before a call.
    header = "".join(_HEADER.findall(first))
    return header + "\n".join(without_declarations(_HEADER.sub("", text)) for text in (*others, first))


_REGISTER_LIMIT = re.compile(r"^// registers: at most (\d+)$", re.MULTILINE)


def with_register_limit(text: str, registers: int | None) -> str:
    """The module with a comment that limits the registers of its kernels, which PTX has no directive for."""
    return text if not registers else f"{text.rstrip()}\n// registers: at most {registers}\n"


def register_limit(text: str) -> int | None:
    """The limit that `with_register_limit` has added; None if there is none."""
    found = _REGISTER_LIMIT.search(text)
    return None if found is None else int(found[1])
