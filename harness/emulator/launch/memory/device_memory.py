"""Device memory as host arrays: buffers, module variables, parameters, and their counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as at
from harness.emulator.abi.sanitizer_layout import GIVEN, NEVER_WRITTEN
from harness.emulator.codegen.kernel_facts import KernelFacts, Site
from harness.emulator.launch.memory.aligned_memory import aligned_zeros
from harness.emulator.launch.memory.module_memory import ModuleMemory
from harness.emulator.launch.memory.sparse_memory import sparse_ones
from harness.emulator.launch.worker import Worker
from harness.execution.traffic.counts import LOCAL, VARIABLE, SharedTraffic, SiteTraffic, TensorTraffic
from harness.support.errors import PlanError, SandboxError


@dataclass(frozen=True)
class DeviceBuffer:
    """A named array that kernels can access."""

    name: str
    data: npt.NDArray[np.uint8]
    """Its bytes, C-contiguous, one-dimensional."""
    written: npt.NDArray[np.uint8] | None = None
    """For the sanitizer, the state of each byte: `NEVER_WRITTEN` (unwritten), `GIVEN` (an input's), or `WRITTEN`."""


def new_buffer(name: str, size_bytes: int, watched: bool, given: npt.NDArray[np.uint8] | None = None) -> DeviceBuffer:
    """Memory filled with 0xFF, which is NaN in every floating-point type; or a copy of the bytes of an input.

    `watched` memory has a state for the sanitizer. Raises `SandboxError` if there is not enough memory.
    """
    try:
        data = aligned_zeros(size_bytes)[:size_bytes]
    except (MemoryError, ValueError) as error:
        raise SandboxError(f"not enough memory for buffer {name}, which has {size_bytes:,} bytes") from error
    data[:] = 0xFF if given is None else given
    state = np.full(size_bytes, NEVER_WRITTEN if given is None else GIVEN, np.uint8) if watched else None
    return DeviceBuffer(name, data, state)


def new_sparse_buffer(name: str, size_bytes: int, watched: bool) -> DeviceBuffer:
    """Memory that reads as 0xFF and takes up space only where something is written.

    Raises `SandboxError` if the machine has not enough addresses for it.
    """
    try:
        return DeviceBuffer(name, sparse_ones(size_bytes), sparse_ones(size_bytes) if watched else None)
    except MemoryError as error:
        raise SandboxError(f"not enough memory for buffer {name}: {error}") from error


class BufferTables:
    """Addresses and sizes of buffers and module variables, and each worker's counters."""

    def __init__(self, facts: KernelFacts, buffers: Sequence[DeviceBuffer], module: ModuleMemory) -> None:
        self._facts = facts
        counted = [v.name for v in facts.variables if v.counted]
        self._names = [*(b.name for b in buffers), LOCAL, *(f"{VARIABLE} {name}" for name in counted)]
        self._buffers = np.array([[b.data.ctypes.data, b.data.nbytes] for b in buffers], dtype=np.int64).reshape(-1, 2)
        self._buffer_count = len(buffers)
        columns = {v.name: at.CONSTANT for v in facts.variables if v.constant}
        columns |= {name: len(buffers) + 1 + place for place, name in enumerate(counted)}
        self._held = module.of(facts.variables)
        columns_of = [columns.get(v.name, at.NOT_COUNTED) for v in facts.variables]
        rows = [[held.ctypes.data, held.nbytes, column] for held, column in zip(self._held, columns_of)]
        self._variables = np.array(rows, dtype=np.int64).reshape(-1, at.VARIABLE_BYTES // 8)
        self.names = tuple(self._names)
        """Name of the buffer of each column of the counters."""
        counted_bytes = [v.size_bytes for v in facts.variables if v.counted]
        self.sizes_bytes = (*(b.data.nbytes for b in buffers), facts.local_bytes, *counted_bytes)
        """Size of the buffer of each column."""
        self._counters: list[npt.NDArray[np.int64]] = []
        self._shared: list[npt.NDArray[np.int64]] = []

    def variables(self, buffers: Sequence[DeviceBuffer]) -> list[tuple[npt.NDArray[np.uint8], int | None]]:
        """The bytes of each module variable, with the index of the buffer that has the same bytes.

        The index is None unless a pointer to the variable was taken.
        """
        by_place = {buffer.data.ctypes.data: index for index, buffer in enumerate(buffers) if buffer.data.nbytes}
        return [(held, by_place.get(held.ctypes.data)) for held in self._held]

    def attach(self, worker: Worker) -> None:
        """Give a worker the tables, and its own counters."""
        counters = np.zeros((len(self._facts.sites), len(self._names), at.COUNTERS_PER_ENTRY), dtype=np.int64)
        shared = np.zeros((len(self._facts.sites), at.SHARED_COUNTERS_PER_SITE), dtype=np.int64)
        self._counters.append(counters)
        self._shared.append(shared)
        worker.set("COUNTERS", counters.ctypes.data)
        worker.set("SHARED_COUNTERS", shared.ctypes.data)
        worker.set("BUFFERS", self._buffers.ctypes.data)
        worker.set("BUFFER_COUNT", self._buffer_count)
        worker.set("COUNTER_COLUMNS", len(self._names))
        worker.set("VARIABLES", self._variables.ctypes.data)
        worker.set("VARIABLE_COUNT", len(self._variables))

    def traffic(self) -> tuple[SiteTraffic, ...]:
        """Traffic of global and local memory over all workers, by instruction and buffer."""
        total = np.sum(self._counters, axis=0)
        rows = []
        # If the lanes of a request access several buffers, one of them counts the request, and each counts its bytes.
        numbers, columns = np.nonzero(total.any(axis=-1))
        for number, column, counted in zip(numbers.tolist(), columns.tolist(), total[numbers, columns].tolist()):
            site = self._facts.sites[number]
            memory = site.memory
            assert memory is not None and memory.in_global is not None
            rows.append(SiteTraffic(self._names[column], memory.in_global, *site.file_and_line, *counted))
        return tuple(rows)

    def block_counters(self) -> BlockCounters:
        """Counters of shared and of tensor memory, over all workers."""
        total = np.sum(self._shared, axis=0)
        numbers = np.flatnonzero(total[:, 0]).tolist()
        counted = [(self._facts.sites[number], total[number].tolist()) for number in numbers]
        return BlockCounters(
            [(site, row) for site, row in counted if not site.opcode.startswith(TENSOR_CORES)],
            [(site, row) for site, row in counted if site.opcode.startswith(TENSOR_CORES)],
        )


@dataclass(frozen=True)
class BlockCounters:
    """The counters of instructions that access memory within a multiprocessor: the requests, then three more."""

    shared: Sequence[tuple[Site, list[int]]]
    """Of shared memory."""
    tensor: Sequence[tuple[Site, list[int]]]
    """Of tensor memory: bytes by kind, in the order of `_TENSOR_KINDS`."""

    def shared_traffic(self) -> tuple[SharedTraffic, ...]:
        """Traffic of shared memory, by instruction."""
        rows = []
        for site, counters in self.shared:
            assert site.memory is not None
            rows.append(SharedTraffic(site.memory.in_shared, *site.file_and_line, *counters))
        return tuple(rows)

    def tensor_traffic(self) -> tuple[TensorTraffic, ...]:
        """Traffic of tensor memory, by instruction and kind."""
        return tuple(
            TensorTraffic(kind, *site.file_and_line, requests, size)
            for site, (requests, *sizes) in self.tensor
            for kind, size in zip(_TENSOR_KINDS, sizes)
            if size
        )

    def tensor_results(self) -> dict[tuple[str, str, int], int]:
        """Elements of D that `tcgen05.mma` computed, by form, source file and line."""
        found: dict[tuple[str, str, int], int] = {}
        for site, (_, *sizes) in self.tensor:
            if site.opcode == "tcgen05.mma":
                place = (site.form, *site.file_and_line)
                found[place] = found.get(place, 0) + sizes[_TENSOR_KINDS.index("store")] // RESULT_BYTES
        return found


TENSOR_CORES = "tcgen05."
RESULT_BYTES = 4
"""Size of a cell of tensor memory, which holds one element of D."""
_TENSOR_KINDS = ("load", "store", "operand")
"""Kinds of traffic of an instruction of Blackwell's tensor cores, in the order of its counters after the requests."""


def parameter_block(facts: KernelFacts, name: str, values: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    """The values of a kernel's parameters in their memory layout.

    Raises `PlanError` if they do not match the kernel.
    """
    if len(values) != len(facts.parameters):
        raise PlanError(f"kernel {name} takes {len(facts.parameters)} arguments; it is given {len(values)}")
    end = max((p.offset + p.size_bytes for p in facts.parameters), default=0)
    packed = bytearray(end)
    for parameter, value in zip(facts.parameters, values):
        if len(value) != parameter.size_bytes:
            raise PlanError(
                f"kernel {name}: argument {parameter.name} takes {parameter.size_bytes} bytes, not {len(value)}"
            )
        packed[parameter.offset : parameter.offset + len(value)] = value
    block = aligned_zeros(end)[:end]
    block[:] = np.frombuffer(packed, dtype=np.uint8)
    return block
