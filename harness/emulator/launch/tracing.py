"""Converts the accesses that the runtime recorded for a block to an array in order of time.

The emulator runs a warp up to a barrier before the next one, while a GPU interleaves them. A record contains the number
of instructions that its warp had executed, including waits at barriers; sorting by it interleaves the warps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import cache_layout as cache
from harness.emulator.abi import layout as at
from harness.emulator.abi.context import SLOT
from harness.emulator.codegen.kernel_facts import Site

Accesses = npt.NDArray[np.uint64]
"""One block's accesses in order, in the format of `cache_layout`."""

RECORDS = 1 << 15
_ON_FULL = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_BEYOND_L1 = ("cg", "cv", "volatile", "relaxed", "acquire", "mmio", "bulk")
"""Modifiers of loads that bypass L1 (PTX ISA 9.7.9.1 and 8), and of copies by TMA."""


def access_kind(site: Site) -> int:
    """The kind of access of an instruction in the cache model."""
    kind = None if site.memory is None else site.memory.in_global
    if kind == "atomic":
        return cache.REDUCTION if site.is_reduction else cache.ATOMIC
    if kind == "store":
        return cache.BULK_STORE if "bulk" in site.form.split(".") else cache.STORE
    return cache.LOAD_BEYOND_L1 if any(word in _BEYOND_L1 for word in site.form.split(".")) else cache.LOAD


class BlockListener(Protocol):
    """Receives the accesses of blocks."""

    @property
    def first_lines(self) -> Sequence[int]:
        """Number of each buffer's first line."""
        ...

    def deliver(self, block: int, accesses: Accesses) -> None:
        """Called once per block, from any thread, in approximate order of block index."""
        ...


class TraceBuffer:
    """The buffer in which one worker's runtime records, one block at a time."""

    def __init__(self, context: npt.NDArray[np.int64], sites: Sequence[Site], first_lines: Sequence[int]) -> None:
        self._context = context
        self._records = np.empty((RECORDS, 2), dtype=np.int64)
        self._kinds = np.array([access_kind(site) for site in sites] or [0], dtype=np.uint8)
        self._first_lines = np.array(first_lines, dtype=np.int64)
        self._earlier: list[npt.NDArray[np.int64]] = []
        # ctypes frees the callback when nothing references it.
        self._on_full = _ON_FULL(self._make_room)
        context[SLOT["TRACE_END"]] = self._records.ctypes.data + self._records.nbytes
        context[SLOT["TRACE_FULL"]] = ctypes.cast(self._on_full, ctypes.c_void_p).value or 0
        context[SLOT["TRACE_KINDS"]] = self._kinds.ctypes.data
        context[SLOT["TRACE_FIRST_LINES"]] = self._first_lines.ctypes.data
        self._rewind()

    def records(self) -> npt.NDArray[np.int64]:
        """Array (entries, 2) of moments and descriptions since the last call."""
        self._make_room(0)
        records = np.concatenate(self._earlier)
        self._earlier = []
        return records

    def take(self, blocks: int, warps: int) -> list[Accesses]:
        """Accesses since the last call, for each of the `blocks` that ran, whose warp numbers differ by `warps`."""
        records = self.records()
        if blocks == 1:
            return [_in_order(records[:, 0], records[:, 1])]
        ranks = (records[:, 0] & ((1 << at.WARP_BITS) - 1)) // warps
        return [_in_order(*records[ranks == rank].T) for rank in range(blocks)]

    def _make_room(self, context: int) -> None:
        used = (int(self._context[SLOT["TRACE_NEXT"]]) - self._records.ctypes.data) // self._records.strides[0]
        self._earlier.append(self._records[:used].copy())
        self._rewind()

    def _rewind(self) -> None:
        self._context[SLOT["TRACE_NEXT"]] = self._records.ctypes.data


def _in_order(moments: npt.NDArray[np.int64], accesses: npt.NDArray[np.int64]) -> Accesses:
    order = np.argsort(moments, kind="stable")
    times = moments[order] >> (at.REQUEST_BITS + at.WARP_BITS)
    delays = np.diff(times, prepend=0).clip(max=(1 << cache.DELAY_BITS) - 1)
    packed: Accesses = accesses[order].astype(np.uint64) << np.uint64(cache.DELAY_BITS)
    packed |= delays.astype(np.uint64)
    return packed
