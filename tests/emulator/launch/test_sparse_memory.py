"""Memory of any size, of which only what is written takes up space."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from harness.emulator.launch.memory import sparse_memory
from harness.emulator.launch.memory.device_memory import new_sparse_buffer
from harness.emulator.launch.memory.sparse_memory import sparse_ones, sparse_zeros
from harness.support.errors import SandboxError

HUGE_BYTES = 2**35


def own_bytes() -> int:
    """Memory of this process that no file backs."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_it_reads_as_ones_everywhere_and_keeps_what_is_written():
    memory = sparse_ones(HUGE_BYTES)
    places = [0, 2**31 - 1, 2**32, 2**32 + sparse_memory.PATTERN_BYTES, HUGE_BYTES - 1]
    assert memory.nbytes == HUGE_BYTES and (memory[places] == 0xFF).all()
    memory[places] = range(len(places))
    assert memory[places].tolist() == [0, 1, 2, 3, 4]
    assert memory[1] == memory[2**31] == memory[HUGE_BYTES - 2] == 0xFF


def test_zeros_are_sparse_too():
    memory = sparse_zeros(2**38)
    memory[2**37] = 7
    assert memory[[0, 2**37, 2**38 - 1]].tolist() == [0, 7, 0]


def test_arrays_of_any_type_refer_to_it():
    numbers = sparse_ones(2**33).view(np.float32).reshape(2, -1)
    numbers[1, -1] = 1.5
    assert numbers[1, -1] == 1.5 and np.isnan(numbers[0, 0])


def test_only_what_is_written_takes_up_memory():
    before = own_bytes()
    memory = sparse_ones(HUGE_BYTES)
    assert (memory[:: 2**20] == 0xFF).all()
    memory[:: 2**30] = 0
    assert own_bytes() - before < 16 * 2**20


def test_it_goes_with_its_last_array():
    before = Path("/proc/self/maps").read_text().count("sparse memory")
    memory = sparse_ones(HUGE_BYTES)
    part = memory[2**33 :].view(np.int32)
    del memory
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("sparse memory") > before and part[0] == -1
    del part
    gc.collect()
    assert Path("/proc/self/maps").read_text().count("sparse memory") == before


def test_more_than_there_are_addresses_is_an_error():
    with pytest.raises(SandboxError, match="not enough memory for buffer Q"):
        new_sparse_buffer("Q", 2**60, False)
