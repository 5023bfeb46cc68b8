"""Finds the PTX in what programs load as modules: text, or what the emulated linker has made of text."""

from __future__ import annotations

import ctypes
import re

from harness.device.driver import status
from harness.device.driver.status import DriverError

_CUBIN, _FAT_BINARY, _FAT_BINARY_WRAPPER = b"\x7fELF", b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"


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


_REGISTER_LIMIT = re.compile(r"^// registers: at most (\d+)$", re.MULTILINE)


def with_register_limit(text: str, registers: int | None) -> str:
    """The module with a comment that limits the registers of its kernels, which PTX has no directive for."""
    return text if not registers else f"{text.rstrip()}\n// registers: at most {registers}\n"


def register_limit(text: str) -> int | None:
    """The limit that `with_register_limit` has added; None if there is none."""
    found = _REGISTER_LIMIT.search(text)
    return None if found is None else int(found[1])
