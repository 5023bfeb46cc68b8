"""Memory for asynchronous operations in flight: bulk copies of a cluster's blocks, and products of their warps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import async_proxy_layout as proxy
from harness.emulator.abi import layout as at
from harness.emulator.abi.context import SLOT
from harness.emulator.launch.aligned_memory import aligned_zeros
from harness.emulator.native.object_loading import load_async_proxy


class AsyncProxy:
    """The memory of one worker. Pages that are never written use no physical memory."""

    def __init__(self, context: npt.NDArray[np.int64], blocks: int, warps: int, shared_bytes: int) -> None:
        """`warps` and `shared_bytes` are totals of all blocks that run together."""
        copies = proxy.COPY_CAPACITY << (blocks - 1).bit_length()
        self._state = np.zeros(proxy.STATE_BYTES // 8, dtype=np.int64)
        self._parts = {
            proxy.COPIES: aligned_zeros(proxy.COPY_BYTES * copies),
            proxy.GROUPS: aligned_zeros(8 * at.LANES * warps),
            proxy.QUEUES: aligned_zeros(proxy.QUEUE_BYTES * warps),
            proxy.SCRATCH: aligned_zeros(proxy.SCRATCH_BYTES),
            proxy.EXPECTED_BY: aligned_zeros(4 * (shared_bytes // proxy.MBARRIER_BYTES + 1)),
        }
        for word, memory in self._parts.items():
            self._state[word // 8] = memory.ctypes.data
        self._state[proxy.CAPACITY // 8] = copies
        context[SLOT["ASYNC_PROXY"]] = self._state.ctypes.data
        for name, address in load_async_proxy().items():
            context[SLOT[name]] = address

    def expected_by(self, place: int) -> int | None:
        """The instruction that last set the expected bytes of an mbarrier's phase; None if none did."""
        site = int(self._parts[proxy.EXPECTED_BY].view(np.int32)[place // proxy.MBARRIER_BYTES])
        return site - 1 if site else None
