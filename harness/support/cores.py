"""The cores that this process may use, and NumPy's work spread over them by threads."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Piece = TypeVar("Piece")
KEPT_BYTES = 32 * 2**20
"""What malloc may take from what was freed before: arrays of NumPy's of up to this size."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


def usable_cores() -> int:
    """How many there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_all_cores(work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
    """`work` on each piece, in any order, several at once. Raises what the first one raised, and begins no others then.

    NumPy lets go of the interpreter while it works. Its BLAS has one thread meanwhile: its own threads, of several
    callers at once, take longer than the work.
    """
    threads = min(usable_cores(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    from threadpoolctl import threadpool_limits

    _keep_freed_memory()
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, pieces):  # whose end, whatever it is, gives up what has not begun
            pass


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc keep what is freed. It gives arrays back to the kernel and asks for them anew, page by page.

    That costs each temporary of some megabytes as much as working on it, and threads wait for each other there. Other
    C libraries have no such thing, and are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 4 * KEPT_BYTES)
