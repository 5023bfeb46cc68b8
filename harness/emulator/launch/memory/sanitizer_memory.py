"""The sanitizer's memory: the tables of one launch, and a state for each worker.

A launch that may overlap the previous one (programmatic dependent launch) continues its tables: the clusters of such
launches are numbered as if they were one grid, the shadow cells keep their accesses, and the records what was released.
What orders them is `griddepcontrol.wait`: with it, a warp acquires a grid clock of the clusters of launches that have
ended by then. The previous launch has; and the one before that if the previous one waited for it, and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as machine
from harness.emulator.abi import sanitizer_layout as at
from harness.emulator.codegen.kernel_facts import KernelFacts
from harness.emulator.launch.configuration import Geometry
from harness.emulator.launch.memory.sparse_memory import sparse_zeros

Words = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
LARGEST_DENSE = 2**27
"""Words of a table that is allocated as usual: 1 GiB."""


@dataclass(frozen=True)
class _Cells:
    """The shadow cells of a buffer or a variable."""

    data: Bytes
    """Its bytes, which are referred to here so that no other object gets their address."""
    shift: int
    """log2 of the bytes of a cell."""
    words: Words


class SanitizerMemory:
    """The tables of one launch, and the states that refer to them. Pages that are never accessed use no memory.

    `buffers` are the bytes of each; `written` has for each a map of its bytes (`NEVER_WRITTEN`, `GIVEN` or 0, see
    `sanitizer_layout`), which outlives the launch and is updated. `variables` are the bytes of each variable of the
    module, with the index of the buffer that has the same bytes, if there is one. `granules` are the bytes of a shadow
    cell of shared and of global memory. `element_bytes` has for each instruction the size of the elements that it
    accesses, or 0. `overlapped` is the memory of the previous launch if this one may begin before that has ended; the
    two must have nothing else in between.
    """

    def __init__(
        self,
        facts: KernelFacts,
        geometry: Geometry,
        buffers: Sequence[Bytes],
        written: Sequence[Bytes],
        variables: Sequence[tuple[Bytes, int | None]],
        granules: tuple[int, int],
        element_bytes: Sequence[int],
        overlapped: SanitizerMemory | None = None,
    ) -> None:
        self._memory: list[Words | Bytes] = list(written)
        self._blocks = geometry.blocks_per_cluster
        self._warps = geometry.warp_pitch * self._blocks
        shared_bytes = facts.shared_bytes + geometry.dynamic_shared_bytes
        self.shared_pitch = geometry.shared_pitch(shared_bytes)
        """Stride of the blocks' shared memory."""
        self._shared_shift, self._global_shift = (granule.bit_length() - 1 for granule in granules)
        self._local_bytes = facts.local_bytes * machine.LANES * self._warps
        self.first_cluster = 0
        """Number of the clusters of earlier launches, which may still run when this one begins."""
        self.first_ended = 0
        """Those from this one on have ended after a `griddepcontrol.wait`."""
        if overlapped is not None:
            self.first_cluster = overlapped.begun_clusters
            self.first_ended = overlapped.first_ended if overlapped.waited else overlapped.first_cluster
            self._global_shift = min(self._global_shift, overlapped._global_shift)
        clusters = self.first_cluster + geometry.clusters
        self._grid_words = clusters if clusters <= at.MOST_GRID_WORDS else 1
        record_words = at.RECORD_HEADER // 8 + 2 * self._grid_words
        own_words = at.OWN_RECORD_HEADER // 8 + 2 * at.CLOCK_WORDS * self._warps
        self._records = min(at.RECORD_LIMIT, at.MOST_RECORD_BYTES // (8 * (record_words + own_words)))
        self._own_record_words = own_words
        self._counts = self._zeros(at.COUNTS)
        self._findings = self._zeros(at.FINDING_LIMIT * at.FINDING_WORDS)
        self._clusters = self._zeros(clusters)
        self._counts[at.CLUSTER_COUNT // 8] = self.first_cluster
        cells: dict[int, _Cells] = {}
        if overlapped is not None:
            self._clusters[: self.first_cluster] = overlapped._clusters[: self.first_cluster]
            cells = overlapped._cells
        extents = self._zeros(2 * len(facts.shared_variables)).reshape(-1, 2)
        for extent, variable in zip(extents, facts.shared_variables):
            end = variable.offset + variable.size_bytes if variable.size_bytes else shared_bytes
            extent[:] = variable.offset, end
        self._cells: dict[int, _Cells] = {}
        cells_of = self._table(buffers, [each.ctypes.data for each in written], cells)
        of_variables = self._table([held for held, _ in variables], [0] * len(variables), cells)
        for row, (_, buffer) in zip(of_variables, variables):
            if buffer is not None:
                row[:] = cells_of[buffer]
        self._record_table = self._records_after(overlapped, record_words)
        tables: dict[str, Words | Bytes] = {
            "COUNTS": self._counts,
            "FINDINGS": self._findings,
            "CLUSTERS": self._clusters,
            "RECORDS": self._record_table,
            "ENDED_LAUNCHES": self._ended_launches(),
            "MODIFIED_MAPS": self._zeros(at.MOST_MODIFIED_MAPS * at.MODIFIED_MAP_BYTES // 8),
            "SHARED_ARRAYS": extents,
            "SITE_BYTES": self._held(np.array(element_bytes, dtype=np.uint8)),
            "BUFFERS": cells_of,
            "VARIABLES": of_variables,
        }
        self._values = {slot: table.ctypes.data for slot, table in tables.items()} | {
            "WARPS": self._warps,
            "SHARED_SHIFT": self._shared_shift,
            "GLOBAL_SHIFT": self._global_shift,
            "LAUNCH_START": self.first_cluster + 1 << at.CLUSTER_SHIFT,
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

    def number_at(self, time: int) -> int:
        """The number of the cluster to which a time belongs, in the order in which they began."""
        return (time >> at.CLUSTER_SHIFT) - 1

    def cluster_at(self, time: int) -> int:
        """The cluster to which a time belongs, by its place in its grid."""
        return int(self._clusters[self.number_at(time)])

    @property
    def begun_clusters(self) -> int:
        """Number of clusters that have begun, with those of earlier launches that this one may overlap."""
        return int(self._counts[at.CLUSTER_COUNT // 8])

    @property
    def waited(self) -> bool:
        """Whether any thread has executed `griddepcontrol.wait`, so that the launch ended after those before it."""
        return bool(self._counts[at.GRID_WAITS // 8])

    def _ended_launches(self) -> Words:
        """A grid clock of the clusters that have ended when a `griddepcontrol.wait` returns."""
        clock = self._zeros(self._grid_words)
        ended = range(self.first_ended, self.first_cluster)
        for number in ended if self._grid_words > 1 else ended[-1:]:
            clock[number if self._grid_words > 1 else 0] = (number + 2 << at.CLUSTER_SHIFT) - 1
        return clock

    def _records_after(self, overlapped: SanitizerMemory | None, record_words: int) -> Words:
        """The table of records, with what was released in earlier launches. Sets their limit."""
        if overlapped is None:
            return self._zeros(self._records * record_words)
        count = int(overlapped._counts[at.RECORD_COUNT // 8])
        limit, words = overlapped._records, overlapped._grid_words
        # Cells may share the last record, and then still have to.
        self._records = limit if count == limit else max(self._records, count + 1)
        self._counts[at.RECORD_COUNT // 8] = count
        table = self._zeros(self._records * record_words)
        header = at.RECORD_HEADER // 8
        old = overlapped._record_table.reshape(limit, -1)[:count]
        new = table.reshape(self._records, -1)[:count]
        new[:, :header] = old[:, :header]
        for part in range(2):
            clock = old[:, header + part * words :][:, :words]
            first = header + part * self._grid_words
            if self._grid_words == 1:
                new[:, first] = clock.max(axis=1)
            else:
                new[:, first : first + words] = clock
        return table

    def _held(self, array: Bytes) -> Bytes:
        self._memory.append(array)
        return array

    def _zeros(self, count: int) -> Words:
        # NumPy's own zeros have to fit into the machine's memory, even if hardly any of them is written.
        words = np.zeros(count, dtype=np.int64) if count < LARGEST_DENSE else sparse_zeros(8 * count).view(np.int64)
        self._memory.append(words)
        return words

    def _table(self, objects: Sequence[Bytes], maps: Sequence[int], overlapped: Mapping[int, _Cells]) -> Words:
        """Make shadow cells for these objects, or take them over, and a table of them and of the maps."""
        table = self._zeros(2 * len(objects)).reshape(-1, 2)
        for row, data, map_address in zip(table, objects, maps):
            cells = self._taken_over(data, overlapped.get(data.ctypes.data))
            if cells is None:
                cells = self._zeros(((data.nbytes >> self._global_shift) + 1) * at.GLOBAL_CELL_BYTES // 8)
            if data.nbytes:
                self._cells[data.ctypes.data] = _Cells(data, self._global_shift, cells)
            row[:] = cells.ctypes.data, map_address
        return table

    def _taken_over(self, data: Bytes, cells: _Cells | None) -> Words | None:
        """The cells of a buffer in an earlier launch, divided if this one needs smaller ones; None if it has none."""
        if cells is None or cells.data.nbytes != data.nbytes:
            return None
        words = cells.words
        if cells.shift > self._global_shift:
            if len(words) >= LARGEST_DENSE:  # too many to copy: begin anew, by which races may be missed
                return None
            parts = 1 << cells.shift - self._global_shift
            words = np.repeat(words.reshape(-1, at.GLOBAL_CELL_BYTES // 8), parts, axis=0).reshape(-1)
        self._memory.append(words)
        return words
