"""Execution counts of basic blocks in one launch, and the path of one cluster's warps through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as at
from harness.emulator.abi.context import SLOT

PATH_STEPS = 1 << 19
"""Maximum number of recorded steps of the followed cluster's warps."""


@dataclass(frozen=True)
class BlockExecutions:
    """Execution counts of a launch, by basic block."""

    counts: npt.NDArray[np.int64]
    """Array (blocks, 2): number of warps and of lanes that entered each block."""
    clusters: npt.NDArray[np.int64]
    """Warp instructions of each cluster; 0 if it was cancelled."""
    path: npt.NDArray[np.int64]
    """Steps of the followed cluster's warps, see `layout.PATH_WARP_SHIFT`."""


class ExecutionCounters:
    """The counters of one worker."""

    def __init__(self, context: npt.NDArray[np.int64], blocks: int, clusters: int, followed: int) -> None:
        self._context = context
        self._clusters = clusters
        self._followed = followed
        self._nowhere = np.zeros(1, dtype=np.int64)
        self._before = 0
        self.counts = np.zeros((blocks, at.BLOCK_COUNTERS_PER_BLOCK), dtype=np.int64)
        self.work: dict[int, int] = {}
        """Warp instructions by cluster."""
        self.path: npt.NDArray[np.int64] | None = None
        """The path of the followed cluster, if this worker ran it; else None."""
        self._steps: npt.NDArray[np.int64] | None = None
        context[SLOT["BLOCK_COUNTERS"]] = self.counts.ctypes.data
        self._write_to(self._nowhere)

    def begin(self, cluster: int) -> None:
        """Called before a cluster runs."""
        self._before = int(self._context[SLOT["WARP_INSTRUCTIONS"]])
        if cluster == self._followed:
            self._steps = np.zeros(PATH_STEPS, dtype=np.int64)
            self._write_to(self._steps)

    def end(self, cluster: int) -> None:
        """Called after a cluster has run."""
        self.work[cluster] = int(self._context[SLOT["WARP_INSTRUCTIONS"]]) - self._before
        if self._steps is not None:
            written = (int(self._context[SLOT["PATH_NEXT"]]) - self._steps.ctypes.data) // self._steps.itemsize
            self.path, self._steps = self._steps[:written].copy(), None
            self._write_to(self._nowhere)

    def _write_to(self, steps: npt.NDArray[np.int64]) -> None:
        self._context[SLOT["PATH_NEXT"]] = steps.ctypes.data
        self._context[SLOT["PATH_LAST"]] = steps.ctypes.data + steps.nbytes - steps.itemsize

    @staticmethod
    def added(counters: Iterable[ExecutionCounters]) -> BlockExecutions:
        """The sum over all workers."""
        counters = tuple(counters)
        clusters = np.zeros(counters[0]._clusters, dtype=np.int64)
        for each in counters:
            clusters[list(each.work)] = list(each.work.values())
        path = next((each.path for each in counters if each.path is not None), np.zeros(0, dtype=np.int64))
        return BlockExecutions(sum((each.counts for each in counters[1:]), counters[0].counts), clusters, path)
