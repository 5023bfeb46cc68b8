"""Copies between the devices of a run (`Plan.copies`): when they happen, what they must not meet, and their bytes.

All devices of a plan share the emulator's address space. Anything that meets a copy in flight is a fault, so no result
depends on when a copy happens.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.emulator.abi.sanitizer_layout import NEVER_WRITTEN
from harness.emulator.launch.memory.run_memory import RunMemory
from harness.execution.protocol import LaunchReport
from harness.execution.traffic.counts import WRITES
from harness.model.peer_copy import PeerCopy
from harness.model.plan import Buffer, Plan
from harness.model.traffic import Link
from harness.support.errors import KernelFault

COPY_RACE = "copy race"
"""The kind of fault of what meets a copy in flight: an access to the buffer that it writes, a store into the buffer
that it reads, or another copy."""


class CopiesOfRun:
    """The copies of one run. Each happens when it is waited for, the latest time that the plan allows."""

    def __init__(self, plan: Plan, memory: RunMemory, buffers: Mapping[str, Buffer]) -> None:
        self._memory = memory
        self._starting: dict[int, list[PeerCopy]] = {}
        for copy in plan.copies:
            self._starting.setdefault(copy.start, []).append(copy)
        self._in_flight: list[PeerCopy] = []
        self._devices = {name: buffer.device for name, buffer in buffers.items()}
        self._bytes: dict[tuple[int, int], int] = {}
        _require_apart(plan.copies)

    @property
    def links(self) -> tuple[Link, ...]:
        """Bytes copied so far between each pair of devices."""
        return tuple(Link(*ends, size) for ends, size in sorted(self._bytes.items()))

    def begin_launch(self, number: int) -> None:
        """Do the copies that are waited for before this launch, and start those that start before it.

        `number` is that of a launch, or how many there are at the end.
        """
        for copy in self._in_flight:
            if copy.wait == number:
                self._copy(copy)
        self._in_flight = [copy for copy in self._in_flight if copy.wait > number] + self._starting.get(number, [])

    def require_apart(self, number: int, report: LaunchReport) -> None:
        """Raise `KernelFault` if the launch of this number met a copy in flight."""
        for copy in self._in_flight:
            for site in report.traffic or ():
                is_store = site.kind in WRITES
                if site.buffer == copy.destination or (site.buffer == copy.source and is_store):
                    place = f", {site.file}:{site.line}" if site.file else ""
                    raise KernelFault(
                        COPY_RACE,
                        f"kernel {report.kernel}{place}: {'store into' if is_store else 'load from'} {site.buffer} in "
                        f"launch {number}, while the {copy} is in flight: it starts before launch {copy.start}, and "
                        f"the plan waits for it before launch {copy.wait}",
                    )

    def _copy(self, copy: PeerCopy) -> None:
        source, destination = self._memory.buffer(copy.source), self._memory.buffer(copy.destination)
        destination.data[: copy.size_bytes] = source.data[: copy.size_bytes]
        if source.written is not None and destination.written is not None:
            states = source.written[: copy.size_bytes]
            destination.written[: copy.size_bytes] = np.where(states == NEVER_WRITTEN, states, np.uint8(0))
        ends = self._devices[copy.source], self._devices[copy.destination]
        self._bytes[ends] = self._bytes.get(ends, 0) + copy.size_bytes


def _require_apart(copies: tuple[PeerCopy, ...]) -> None:
    """Raise `KernelFault` if a copy writes what another one in flight reads or writes."""
    writers: dict[str, list[PeerCopy]] = {}
    for copy in copies:
        writers.setdefault(copy.destination, []).append(copy)
    for copy in copies:
        for name, what in ((copy.source, "reads"), (copy.destination, "writes")):
            for other in writers.get(name, ()):
                if other is not copy and copy.flies_with(other):
                    raise KernelFault(COPY_RACE, f"{other} writes {name} while the {copy} {what} it")
