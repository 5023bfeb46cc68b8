"""Memory that the host and a device share, and how much there is."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import pytest

from harness import Device, SandboxError, UsageError
from harness.device import memory as device_memory
from harness.device.memory import DeviceMemory


def test_shared_memory_has_one_address_and_registered_memory_two() -> None:
    memory = DeviceMemory(watched=False)
    shared = memory.allocate_shared(64, "pinned")
    assert shared.host_address == shared.address
    ctypes.memset(shared.address, 5, 64)
    assert (memory.view(shared.address, 64) == 5).all()
    here = np.arange(64, dtype=np.uint8)
    registered = memory.register(here.ctypes.data, 64, "registered")
    memory.view(registered.address + 3, 1)[:] = 77
    assert here[3] == 77 and memory.find(here.ctypes.data + 3) == (registered, 3)
    assert memory.lookup_host(here.ctypes.data + 63) is registered and memory.lookup_host(here.ctypes.data + 64) is None
    assert memory.used_bytes == 0


def test_used_bytes_fall_when_memory_is_freed() -> None:
    device = Device()
    x, address = device.empty(100), device.allocate(1000)
    assert device.memory.used_bytes == 1400
    del x
    gc.collect()
    device.free(address)
    assert device.memory.used_bytes == 0
    with pytest.raises(UsageError, match="freed"):
        device.read(address, 1)


def test_more_memory_than_the_machine_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "available_bytes", lambda: 1 << 21)
    device = Device()
    device.allocate(1 << 21)
    with pytest.raises(SandboxError, match="no 2,097,153 bytes left"):
        device.allocate((1 << 21) + 1)
