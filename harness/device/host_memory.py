"""Memory of this process by address: pages that are mapped where a device has them, and bytes in place."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as at
from harness.emulator.launch.memory.aligned_memory import SLACK_BYTES

_FIXED_NO_REPLACE = 0x100000
"""MAP_FIXED_NOREPLACE of Linux 4.17; an older kernel takes the address as a hint."""
_HOST_WINDOWS = frozenset((*range(0x555, 0x567), *range(0x7E0, 0x800), *range(0xAAA, 0xABC), *range(0xFE0, 0x1000)))
"""Windows in whose addresses Linux places programs, their heaps, libraries and stacks, on x86-64 and aarch64."""


def is_usual_for_host(slot: int) -> bool:
    """Whether a buffer in this slot would have addresses that Linux usually gives to programs."""
    return at.FIRST_BUFFER_WINDOW + slot in _HOST_WINDOWS


def bytes_at(address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory of the host as an array."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(address))


def map_zeros(address: int, size_bytes: int) -> bool:
    """Map zeroed pages at an address. Returns False if something is there."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED_NO_REPLACE
    length = _pages(size_bytes)
    found = libc.mmap(ctypes.c_void_p(address), length, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, ctypes.c_long(0))
    if found not in (address, ctypes.c_void_p(-1).value):
        libc.munmap(ctypes.c_void_p(found), length)
    return bool(found == address)


def unmap(address: int, size_bytes: int) -> None:
    """Undo `map_zeros`."""
    ctypes.CDLL(None).munmap(ctypes.c_void_p(address), _pages(size_bytes))


def _pages(size_bytes: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(-(-(size_bytes + SLACK_BYTES) // mmap.PAGESIZE) * mmap.PAGESIZE)
