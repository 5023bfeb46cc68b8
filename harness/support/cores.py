"""The cores that this process may use, and threads that distribute NumPy work over them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")
KEPT_BYTES = 32 * 2**20
"""The array size up to which malloc reuses freed memory."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


def usable_cores() -> int:
    """Number of usable cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def begin(work: Callable[..., Result], *arguments: Any) -> Callable[[], Result]:
    """Begin `work(*arguments)` in a thread. The function returned waits for its result, and raises its exception."""
    thread = ThreadPoolExecutor(1)
    result = thread.submit(work, *arguments).result
    thread.shutdown(wait=False)
    return result


def on_all_cores(work: Callable[[Piece], None], pieces: Sequence[Piece]) -> None:
    """Call `work` on each piece concurrently, in any order. Raises the first exception and starts no pieces after it.

    NumPy releases the interpreter lock while it works. Its BLAS is limited to one thread meanwhile: BLAS threads of
    several concurrent callers take longer than the work itself.
    """
    threads = min(usable_cores(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    from threadpoolctl import threadpool_limits

    _keep_freed_memory()
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, pieces):  # leaving it cancels the pieces that have not begun
            pass


@functools.cache
def _keep_freed_memory() -> None:
    """Let glibc keep freed memory, which by default returns arrays to the kernel and requests them again page by page.

    For temporaries of some megabytes that costs as much as the computation, and threads contend for it. Other C
    libraries are left as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 4 * KEPT_BYTES)
