"""Memory of any size that takes up space only where something was written; elsewhere it reads as 0xFF, or as 0.

An address range is reserved. For 0xFF, every part of it shows one small file of such bytes, each page of which is
copied when it is first written (`MAP_PRIVATE`). So buffers of a problem of 2^33 elements fit on a laptop.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

PATTERN_BYTES = 32 << 20
"""Size of the file. Linux allows 65,530 mappings per process, and a buffer of 32 GiB has 1,024 of these."""
_RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
_FIXED = 0x10  # MAP_FIXED
_FAILED = ctypes.c_void_p(-1).value


def sparse_ones(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Bytes of 0xFF, without memory for what is not written. Raises `MemoryError` if the range cannot be reserved."""
    array: npt.NDArray[np.uint8] = np.asarray(_Mapping(size_bytes, is_ones=True))
    return array


def sparse_zeros(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeros, without memory for what is not written. Raises `MemoryError` if the range cannot be reserved."""
    array: npt.NDArray[np.uint8] = np.asarray(_Mapping(size_bytes, is_ones=False))
    return array


class _Mapping:
    """An address range, which is released with the last array that refers to it."""

    def __init__(self, size_bytes: int, is_ones: bool) -> None:
        self._reserved_bytes = max(1, -(-size_bytes // PATTERN_BYTES)) * PATTERN_BYTES
        self._libc = _libc()
        self._address: int | None = self._map(None, self._reserved_bytes, _RESERVED, -1)
        for start in range(0, self._reserved_bytes if is_ones else 0, PATTERN_BYTES):
            self._map(self._address + start, PATTERN_BYTES, mmap.MAP_PRIVATE | _FIXED, _pattern())
        place = (self._address, False)
        self.__array_interface__ = {"shape": (size_bytes,), "typestr": "|u1", "data": place, "version": 3}

    def _map(self, address: int | None, size_bytes: int, flags: int, file: int) -> int:
        found = self._libc.mmap(address, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, file, 0)
        if found in (None, _FAILED):
            raise MemoryError(f"{size_bytes:,} bytes of addresses: {os.strerror(ctypes.get_errno())}")
        return int(found)

    def __del__(self) -> None:
        address, self._address = getattr(self, "_address", None), None
        if address is not None:
            self._libc.munmap(address, self._reserved_bytes)


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
    )  # fmt: skip
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    return libc


@functools.cache
def _pattern() -> int:
    """The file descriptor of `PATTERN_BYTES` of 0xFF."""
    file = os.memfd_create("sparse memory")
    piece = b"\xff" * (1 << 20)
    for _ in range(PATTERN_BYTES // len(piece)):
        os.write(file, piece)
    return file
