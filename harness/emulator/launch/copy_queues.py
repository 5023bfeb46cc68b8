"""Memory for copies in flight: one queue per warp, which grows while its copies are not awaited."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import copy_layout as at
from harness.emulator.abi.context import SLOT
from harness.emulator.native.object_loading import load_copies

FIRST_CAPACITY = 32
NARROWEST_BYTES = 4
"""Minimum bytes written by one copy of one lane (PTX ISA 9.7.9.25.3.1)."""
_ON_FULL = ctypes.CFUNCTYPE(None, ctypes.c_int64)


def capacity_limit(shared_bytes: int) -> int:
    """Number of requests of one warp beyond which two of them must overlap, as a power of two."""
    return int(max(FIRST_CAPACITY, 1 << (shared_bytes // NARROWEST_BYTES).bit_length()))


class CopyQueues:
    """The queues of one worker's warps. The runtime calls back if one is full."""

    def __init__(self, context: npt.NDArray[np.int64], warps: int, shared_bytes: int) -> None:
        self._context = context
        self._limit = capacity_limit(shared_bytes)
        self._queues = np.zeros((warps, at.QUEUE_BYTES // 8), dtype=np.int64)
        self._rings = [self._ring(FIRST_CAPACITY) for _ in range(warps)]
        for warp in range(warps):
            self._point(warp)
        # ctypes frees the callback when nothing references it.
        self._on_full = _ON_FULL(self._grow)
        context[SLOT["DROP_COPIES"]] = load_copies()
        context[SLOT["COPY_QUEUES"]] = self._queues.ctypes.data
        context[SLOT["COPY_QUEUE_FULL"]] = ctypes.cast(self._on_full, ctypes.c_void_p).value or 0

    @staticmethod
    def _ring(capacity: int) -> npt.NDArray[np.int64]:
        return np.empty((capacity, at.REQUEST_BYTES // 8), dtype=np.int64)

    def _point(self, warp: int) -> None:
        self._queues[warp, at.REQUESTS // 8] = self._rings[warp].ctypes.data
        self._queues[warp, at.CAPACITY // 8] = len(self._rings[warp])

    def _grow(self, context: int) -> None:
        """Double the capacity of the current warp's queue, up to the limit."""
        warp = int(self._context[SLOT["FIRST_WARP"]] + self._context[SLOT["WARP_INDEX"]])
        old = self._rings[warp]
        if len(old) >= self._limit:
            return
        head, tail = (int(self._queues[warp, word // 8]) for word in (at.HEAD, at.TAIL))
        held = np.arange(head, tail)
        self._rings[warp] = self._ring(2 * len(old))
        self._rings[warp][held % (2 * len(old))] = old[held % len(old)]
        self._point(warp)
