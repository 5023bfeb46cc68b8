"""The memory of a device: allocations at virtual addresses, and their bytes in this process."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from harness.device.host_memory import bytes_at, is_usual_for_host, map_zeros, unmap
from harness.emulator.abi import layout as at
from harness.emulator.launch.memory.device_memory import DeviceBuffer, new_buffer
from harness.support.errors import SandboxError, UsageError
from harness.support.memory import available_bytes

WAITING_SLOTS = 256
"""Addresses of freed memory are given out again only after this many more have been freed, so that a kernel that uses
freed memory is at fault instead of using another buffer."""
_MOST_MAPPINGS_TRIED = 64
_SMALL_BYTES = 1 << 20
"""Allocations of less are made without a look at the memory that this machine has left."""


class Allocation:
    """Memory that one call allocated. It is freed with the last object that refers to it, or by `free`."""

    def __init__(self, address: int, buffer: DeviceBuffer, release: Callable[[int], None]) -> None:
        self.address, self.name, self.size_bytes = address, buffer.name, buffer.data.nbytes
        self.host_address: int | None = None
        """Address at which the host may access it, for pinned, registered and managed memory."""
        self.managed = False
        self._finalizer = weakref.finalize(self, release, address)
        self._finalizer.atexit = False

    @property
    def is_freed(self) -> bool:
        """Whether the memory was freed."""
        return not self._finalizer.alive

    def free(self) -> None:
        """Free the memory, if it was not freed before."""
        self._finalizer()


class DeviceMemory:
    """Allocations by address. Each has a range of 64 GiB of addresses, so that no stray access reaches another one.

    `watched` memory has a state of each byte for the sanitizer.
    """

    def __init__(self, *, watched: bool) -> None:
        self.buffers: list[DeviceBuffer] = []
        """The buffers of a launch, in order of their addresses. Freed ones have no bytes."""
        self.used_bytes = 0
        """Bytes of device memory that are allocated, without those that the host shares."""
        self.unnamed: set[int] = set()
        """Slots of allocations to which their caller gave no name."""
        self._watched = watched
        self._freed: deque[int] = deque()
        self._count = 0
        self._live: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()
        self._kept: dict[int, Allocation] = {}
        self._on_host: dict[int, int] = {}
        """Slots of memory that the host shares, with the number of bytes that were mapped for it."""

    # Allocation -------------------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int, name: str = "") -> Allocation:
        """Allocate memory, filled with 0xFF. Raises `UsageError` for a negative size, `SandboxError` if too large."""
        if size_bytes < 0 or size_bytes > at.BUFFER_START:
            raise UsageError(f"an allocation has {size_bytes} bytes; it has to be from 0 to {at.BUFFER_START}")
        if size_bytes > _SMALL_BYTES and size_bytes > available_bytes():
            raise SandboxError(f"this machine has no {size_bytes:,} bytes left for the emulated GPU")
        allocation = self._placed(new_buffer(name or f"array{self._count}", size_bytes, self._watched))
        self._count += 1
        if not name:
            self.unnamed.add(at.buffer_index(allocation.address))
        return allocation

    def allocate_shared(self, size_bytes: int, name: str, *, managed: bool = False) -> Allocation:
        """Allocate zeroed memory that has the same address for the host and the device.

        Raises `SandboxError` if this process has no such addresses left.
        """
        for _ in range(_MOST_MAPPINGS_TRIED):
            slot = self._next_slot()
            address = at.buffer_address(slot)
            if map_zeros(address, size_bytes):
                break
            self.buffers[slot] = self._without_bytes("reserved")
        else:
            raise SandboxError(f"this process has no addresses left for {size_bytes:,} bytes that host and GPU share")
        self._on_host[slot] = size_bytes
        allocation = self._placed(DeviceBuffer(name, bytes_at(address, size_bytes)), slot)
        allocation.host_address, allocation.managed = address, managed
        return allocation

    def register(self, host_address: int, size_bytes: int, name: str) -> Allocation:
        """Give the device access to memory of the host, at an address of its own."""
        slot = self._next_slot()
        self._on_host[slot] = 0
        allocation = self._placed(DeviceBuffer(name, bytes_at(host_address, size_bytes)), slot)
        allocation.host_address = host_address
        return allocation

    def alias(self, name: str, data: npt.NDArray[np.uint8]) -> Allocation:
        """Give bytes that exist already, such as a module's variable, an address in this memory."""
        return self._placed(DeviceBuffer(name, data, np.zeros(data.nbytes, np.uint8) if self._watched else None))

    def keep(self, allocation: Allocation) -> int:
        """Keep memory that no object refers to until `free` is called with its address, which is returned."""
        self._kept[allocation.address] = allocation
        return allocation.address

    def free(self, address: int) -> None:
        """Free what `keep` returned. Raises `UsageError` for another address."""
        allocation = self._kept.pop(address, None)
        if allocation is None:
            raise UsageError(f"no allocation begins at address {address:#x}; pass what device.allocate returned")
        allocation.free()

    def close(self) -> None:
        """Free all allocations."""
        self._kept.clear()
        for allocation in list(self._live.values()):
            allocation.free()

    def _next_slot(self) -> int:
        if len(self._freed) > WAITING_SLOTS:
            return self._freed.popleft()
        while is_usual_for_host(len(self.buffers)):
            self.buffers.append(self._without_bytes("reserved"))
        self.buffers.append(self._without_bytes("reserved"))
        return len(self.buffers) - 1

    def _placed(self, buffer: DeviceBuffer, slot: int | None = None) -> Allocation:
        slot = self._next_slot() if slot is None else slot
        self.buffers[slot] = buffer
        self._live[slot] = allocation = Allocation(at.buffer_address(slot), buffer, self._release)
        if slot not in self._on_host:
            self.used_bytes += buffer.data.nbytes
        return allocation

    def _release(self, address: int) -> None:
        slot = at.buffer_index(address)
        freed = self.buffers[slot]
        self.buffers[slot] = self._without_bytes(f"{freed.name} (freed)")
        self._freed.append(slot)
        self.unnamed.discard(slot)
        mapped_bytes = self._on_host.pop(slot, None)
        if mapped_bytes is None:
            self.used_bytes -= freed.data.nbytes
        elif mapped_bytes:
            unmap(address, mapped_bytes)

    def _without_bytes(self, name: str) -> DeviceBuffer:
        none = np.zeros(0, np.uint8)
        return DeviceBuffer(name, none, none if self._watched else None)

    # Addresses --------------------------------------------------------------------------------------------------------

    def lookup(self, address: int) -> Allocation | None:
        """The allocation in whose range a device address is, or directly behind it; None if there is none."""
        found = self._live.get(at.buffer_index(address))
        return found if found is not None and 0 <= address - found.address <= found.size_bytes else None

    def lookup_host(self, address: int) -> Allocation | None:
        """The allocation that has this address of the host; None if there is none."""
        for slot in self._on_host:
            found = self._live[slot]
            if found.host_address is not None and 0 <= address - found.host_address < found.size_bytes:
                return found
        return None

    def find(self, address: int, size_bytes: int = 0) -> tuple[Allocation, int]:
        """The allocation that has these bytes, and their offset. Raises `UsageError` if none has.

        The address may be that of the host.
        """
        slot, offset = at.buffer_index(address), (address & at.OFFSET_MASK) - at.BUFFER_START
        allocation = self._live.get(slot)
        if allocation is None:
            allocation = self.lookup_host(address)
            if allocation is None or allocation.host_address is None:
                known = 0 <= slot < len(self.buffers)
                what = f"the memory of {self.buffers[slot].name} is not" if known else "there is no memory"
                raise UsageError(f"{what} at address {address:#x} of this device; allocate it first")
            offset = address - allocation.host_address
        if size_bytes < 0 or offset < 0 or offset + size_bytes > allocation.size_bytes:
            raise UsageError(
                f"{size_bytes:,} bytes at byte offset {offset:,} of {allocation.name} are outside of it; it has "
                f"{allocation.size_bytes:,} bytes"
            )
        return allocation, offset

    def buffer_of(self, allocation: Allocation) -> DeviceBuffer:
        """The bytes of an allocation, and their states for the sanitizer."""
        return self.buffers[at.buffer_index(allocation.address)]

    def view(self, address: int, size_bytes: int, *, written: bool = False) -> npt.NDArray[np.uint8]:
        """The bytes at an address, in place. `written` tells the sanitizer that the host writes them.

        Raises `UsageError` if they are not in one allocation.
        """
        allocation, offset = self.find(address, size_bytes)
        buffer = self.buffer_of(allocation)
        if written and buffer.written is not None:
            buffer.written[offset : offset + size_bytes] = 0
        return buffer.data[offset : offset + size_bytes]

    # Launches ---------------------------------------------------------------------------------------------------------

    def named(self, names: dict[int, str]) -> list[DeviceBuffer]:
        """The buffers of a launch, some of them by another name than that of their allocation, by slot."""
        return [replace(b, name=names[slot]) if slot in names else b for slot, b in enumerate(self.buffers)]
