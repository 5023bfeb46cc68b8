"""The sanitizer's memory: the tables of one launch, and a state for each worker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.launch.configuration import Geometry
from harness.emulator.launch.memory.sparse_memory import sparse_zeros

Words = npt.NDArray[np.int64]
LARGEST_DENSE = 2**27
"""Words of a table that is allocated as usual: 1 GiB."""


class SanitizerMemory:
    """The tables of one launch, and the states that refer to them. Pages that are never accessed use no memory.

    `buffers` are sizes; `written` has for each a map of its bytes (`NEVER_WRITTEN`, `GIVEN` or 0, see
    `sanitizer_layout`), which outlives the launch and is updated. `variables` has for each variable of the module the
    index of the buffer with the same bytes, if there is one. `granules` are the bytes of a shadow cell of shared and of
    global memory. `element_bytes` has for each instruction the size of the elements that it accesses, or 0.
    """

    def __init__(
        self,
        facts: KernelFacts,
        geometry: Geometry,
        buffers: Sequence[int],
        written: Sequence[npt.NDArray[np.uint8]],
        variables: Sequence[int | None],
        granules: tuple[int, int],
        element_bytes: Sequence[int],
    ) -> None:
        self._memory: list[Words | npt.NDArray[np.uint8]] = list(written)
        self._blocks = geometry.blocks_per_cluster
        self._warps = geometry.warp_pitch * self._blocks
        shared_bytes = facts.shared_bytes + geometry.dynamic_shared_bytes
        self.shared_pitch = geometry.shared_pitch(shared_bytes)
        """Stride of the blocks' shared memory."""
        self._shared_shift, global_shift = (granule.bit_length() - 1 for granule in granules)
        self._local_bytes = facts.local_bytes * machine.LANES * self._warps
        self._grid_words = geometry.clusters if geometry.clusters <= at.MOST_GRID_WORDS else 1
        record_words = at.RECORD_HEADER // 8 + 2 * self._grid_words
        own_words = at.OWN_RECORD_HEADER // 8 + 2 * at.CLOCK_WORDS * self._warps
        self._records = min(at.RECORD_LIMIT, at.MOST_RECORD_BYTES // (8 * (record_words + own_words)))
        self._own_record_words = own_words
        self._counts = self._zeros(4)
        self._findings = self._zeros(at.FINDING_LIMIT * at.FINDING_WORDS)
        self._clusters = self._zeros(geometry.clusters)
        extents = self._zeros(2 * len(facts.shared_variables)).reshape(-1, 2)
        for extent, variable in zip(extents, facts.shared_variables):
            end = variable.offset + variable.size_bytes if variable.size_bytes else shared_bytes
            extent[:] = variable.offset, end
        cells_of = self._table(buffers, [each.ctypes.data for each in written], global_shift)
        of_variables = self._table([v.size_bytes for v in facts.variables], [0] * len(variables), global_shift)
        for row, buffer in zip(of_variables, variables):
            if buffer is not None:
                row[:] = cells_of[buffer]
        tables: dict[str, Words | npt.NDArray[np.uint8]] = {
            "COUNTS": self._counts,
            "FINDINGS": self._findings,
            "CLUSTERS": self._clusters,
            "RECORDS": self._zeros(self._records * record_words),
            "MODIFIED_MAPS": self._zeros(at.MOST_MODIFIED_MAPS * at.MODIFIED_MAP_BYTES // 8),
            "SHARED_ARRAYS": extents,
            "SITE_BYTES": self._held(np.array(element_bytes, dtype=np.uint8)),
            "BUFFERS": cells_of,
            "VARIABLES": of_variables,
        }
        self._values = {slot: table.ctypes.data for slot, table in tables.items()} | {
            "WARPS": self._warps,
            "SHARED_SHIFT": self._shared_shift,
            "GLOBAL_SHIFT": global_shift,
            "LOCAL_BYTES": self._local_bytes,
            "GRID_WORDS": self._grid_words,
            "RECORD_LIMIT": self._records,
            "CLUSTER_BLOCKS": self._blocks,
            "BLOCK_WARPS": geometry.warp_pitch,
            "SHARED_PITCH": self.shared_pitch,
        }

    def new_state(self) -> int:
        """The address of a new worker's state."""
        blocks, warps = self._blocks, self._warps
        cells = (self.shared_pitch * blocks >> self._shared_shift) + 1
        barriers = machine.BARRIER_SLOTS * blocks + at.CLUSTER_BARRIERS
        clock = at.CLOCK_WORDS * warps
        sizes = {
            "SHARED_CELLS": cells * (at.READERS + at.ENTRY_BYTES * warps) // 8,
            "SHARED_SYNC": cells * clock,
            "PHASE_SYNC": cells * clock,
            "CLOCKS": warps * clock,
            "FEW_CLOCKS": warps * clock,
            "FEW_LANES": warps,
            "RELEASED": warps * at.RELEASED_WORDS,
            "LANE_CLOCKS": warps * machine.LANES**2,
            "LANE_SYNC": warps,
            "CLUSTER_FENCED": warps,
            "FENCES": at.SCOPES * warps,
            "PENDING": at.PENDING_BYTES // 8 * warps,
            "PENDING_CLOCKS": 2 * warps * clock,
            "GRID_CLOCKS": at.WARP_VIEWS * warps * self._grid_words,
            "VIEWS": at.WARP_VIEWS * warps,
            "OWN_RECORDS": self._records * self._own_record_words,
            "BARRIER_CLOCKS": barriers * (clock + at.SCOPES),
            "REMOTE": blocks * warps * at.REMOTE_BYTES // 8,
            "KNOWN_AT_END": blocks * clock,
            "MET": blocks,
        }
        values = self._values | {slot: self._zeros(words).ctypes.data for slot, words in sizes.items()}
        values["LOCAL_MAP"] = self._held(np.zeros(self._local_bytes, dtype=np.uint8)).ctypes.data
        state = self._zeros(len(at.SLOTS))
        for slot, value in values.items():
            state[at.SLOTS.index(slot)] = value
        return state.ctypes.data

    def findings(self) -> Words:
        """The rows of the table of findings, see `FINDING_WORDS`."""
        return self._findings.reshape(-1, at.FINDING_WORDS)[: self._counts[at.FINDING_COUNT // 8]]

    def cluster_at(self, time: int) -> int:
        """The cluster to which a time belongs."""
        return int(self._clusters[(time >> at.CLUSTER_SHIFT) - 1])

    def _held(self, array: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        self._memory.append(array)
        return array

    def _zeros(self, count: int) -> Words:
        # NumPy's own zeros have to fit into the machine's memory, even if hardly any of them is written.
        words = np.zeros(count, dtype=np.int64) if count < LARGEST_DENSE else sparse_zeros(8 * count).view(np.int64)
        self._memory.append(words)
        return words

    def _table(self, sizes: Sequence[int], maps: Sequence[int], shift: int) -> Words:
        """Make shadow cells for objects of these sizes, and a table of them and of the maps."""
        table = self._zeros(2 * len(sizes)).reshape(-1, 2)
        for row, size, map_address in zip(table, sizes, maps):
            row[:] = self._zeros(((size >> shift) + 1) * at.GLOBAL_CELL_BYTES // 8).ctypes.data, map_address
        return table
