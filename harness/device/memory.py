"""The memory of a device: allocations at virtual addresses, and their bytes in this process."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.emulator.abi import layout as at
from harness.emulator.launch.device_memory import DeviceBuffer, new_buffer
from harness.support.errors import UsageError

WAITING_SLOTS = 256
"""Addresses of freed memory are given out again only after this many more have been freed, so that a kernel that uses
freed memory is at fault instead of using another buffer."""


class Allocation:
    """Memory that one call allocated. It is freed with the last object that refers to it, or by `free`."""

    def __init__(self, address: int, size_bytes: int, name: str, release: Callable[[int], None]) -> None:
        self.address, self.size_bytes, self.name = address, size_bytes, name
        self._finalizer = weakref.finalize(self, release, address)
        self._finalizer.atexit = False

    @property
    def is_freed(self) -> bool:
        """Whether the memory was freed."""
        return not self._finalizer.alive

    def free(self) -> None:
        """Free the memory, if it was not freed before."""
        self._finalizer()


@dataclass(frozen=True)
class Found:
    """A place in an allocation."""

    slot: int
    """Number of the allocation's buffer among those of a launch."""
    buffer: DeviceBuffer
    offset: int
    """Bytes from the beginning of the allocation."""

    @property
    def address(self) -> int:
        """Address of the beginning of the allocation."""
        return at.buffer_address(self.slot)


class DeviceMemory:
    """Allocations by address. Each has a range of 64 GiB of addresses, so that no stray access reaches another one.

    `watched` memory has a state of each byte for the sanitizer.
    """

    def __init__(self, *, watched: bool) -> None:
        self.buffers: list[DeviceBuffer] = []
        """The buffers of a launch, in order of their addresses. Freed ones have no bytes."""
        self._watched = watched
        self._freed: deque[int] = deque()
        self._count = 0
        self._live: weakref.WeakSet[Allocation] = weakref.WeakSet()
        self.unnamed: set[int] = set()
        """Slots of allocations to which their caller gave no name."""

    def allocate(self, size_bytes: int, name: str = "") -> Allocation:
        """Allocate memory, filled with 0xFF. Raises `UsageError` for a negative size, `SandboxError` if too large."""
        if size_bytes < 0 or size_bytes > at.BUFFER_START:
            raise UsageError(f"an allocation has {size_bytes} bytes; it has to be from 0 to {at.BUFFER_START}")
        is_named = bool(name)
        allocation = self._placed(new_buffer(name or f"array{self._count}", size_bytes, self._watched))
        self._count += 1
        if not is_named:
            self.unnamed.add(at.buffer_index(allocation.address))
        return allocation

    def alias(self, name: str, data: npt.NDArray[np.uint8]) -> Allocation:
        """Give bytes that exist already, such as a module's variable, an address in this memory."""
        return self._placed(DeviceBuffer(name, data, np.zeros(data.nbytes, np.uint8) if self._watched else None))

    def _placed(self, buffer: DeviceBuffer) -> Allocation:
        if len(self._freed) > WAITING_SLOTS:
            slot = self._freed.popleft()
            self.buffers[slot] = buffer
        else:
            slot = len(self.buffers)
            self.buffers.append(buffer)
        allocation = Allocation(at.buffer_address(slot), buffer.data.nbytes, buffer.name, self._release)
        self._live.add(allocation)
        return allocation

    def _release(self, address: int) -> None:
        slot = at.buffer_index(address)
        none = np.zeros(0, np.uint8)
        self.buffers[slot] = DeviceBuffer(f"{self.buffers[slot].name} (freed)", none, none if self._watched else None)
        self._freed.append(slot)
        self.unnamed.discard(slot)

    def close(self) -> None:
        """Free all allocations."""
        for allocation in list(self._live):
            allocation.free()

    def find(self, address: int, size_bytes: int = 0) -> Found:
        """Find the allocation that has these bytes. Raises `UsageError` if none has."""
        slot, offset = at.buffer_index(address), (address & at.OFFSET_MASK) - at.BUFFER_START
        buffer = self.buffers[slot] if 0 <= slot < len(self.buffers) else None
        if buffer is None or slot in self._freed:
            what = "there is no memory" if buffer is None else f"the memory of {buffer.name}"
            raise UsageError(f"{what} at address {address:#x} of this device; allocate it first")
        if size_bytes < 0 or offset < 0 or offset + size_bytes > buffer.data.nbytes:
            raise UsageError(
                f"{size_bytes} bytes at offset {offset} of {buffer.name} are outside of it; it has "
                f"{buffer.data.nbytes} bytes"
            )
        return Found(slot, buffer, offset)

    def view(self, address: int, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The bytes at an address, in place. Raises `UsageError` if they are not in one allocation."""
        found = self.find(address, size_bytes)
        return found.buffer.data[found.offset : found.offset + size_bytes]

    def mark_written(self, address: int, size_bytes: int) -> None:
        """Note for the sanitizer that the host has written these bytes."""
        found = self.find(address, size_bytes)
        if found.buffer.written is not None:
            found.buffer.written[found.offset : found.offset + size_bytes] = 0

    def named(self, names: dict[int, str]) -> list[DeviceBuffer]:
        """The buffers of a launch, some of them by another name than that of their allocation, by slot."""
        return [replace(b, name=names[slot]) if slot in names else b for slot, b in enumerate(self.buffers)]

    def snapshot(self) -> list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None]]:
        """Copies of all bytes and of their states, for `restore`."""
        return [(b.data.copy(), None if b.written is None else b.written.copy()) for b in self.buffers]

    def restore(self, snapshot: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8] | None]]) -> None:
        """Undo all changes since the snapshot. Nothing may have been allocated or freed since."""
        for buffer, (data, written) in zip(self.buffers, snapshot):
            buffer.data[:] = data
            if buffer.written is not None and written is not None:
                buffer.written[:] = written
