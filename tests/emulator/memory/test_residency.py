from __future__ import annotations

import pytest

from harness.emulator.memory.residency import Residency, residency
from harness.support.gpu_data_sheets import AMPERE, HOPPER, TURING

pytestmark = pytest.mark.compiles(False)

KIB = 1024


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "blocks", "shared_memory_kib"),
    [
        # Kernels of 128 threads on an H200, as Nsight Compute reported them (launch__*): the limit is
        (22, 0, 16, 32),  # threads; 21 blocks by registers, each with 1 KiB of the driver's
        (27, 0, 16, 32),
        (80, 33_920, 6, 228),  # registers
        (72, 23_168, 7, 196),
        (29, 48 * KIB, 4, 196),  # shared memory, and more of it would not hold a fifth block
    ],
)
def test_an_h200_agrees(registers: int, shared_bytes: int, blocks: int, shared_memory_kib: int):
    found = residency(HOPPER, 128, registers, shared_bytes)
    left = (256 - shared_memory_kib) * KIB
    expected = Residency(blocks, 22 * KIB, l1_random=True) if shared_memory_kib == 228 else Residency(blocks, left)
    assert found == expected


def test_warps_and_registers_are_given_out_in_units():
    assert residency(HOPPER, 33, 32, 0).blocks == residency(HOPPER, 64, 32, 0).blocks == 32
    # 65 registers are 72 by warp, and each of the four schedulers has room for seven such warps.
    assert residency(HOPPER, 128, 65, 0).blocks == 7
    assert residency(HOPPER, 1024, 65, 0).blocks == 0


def test_other_gpus_have_other_limits():
    assert residency(AMPERE, 128, 32, 40 * KIB) == Residency(4, 22 * KIB, l1_random=True)
    assert residency(TURING, 128, 32, 16 * KIB) == Residency(4, round(32 * KIB * 22 / 28), l1_random=True)
    assert residency(TURING, 128, 32, 2 * KIB) == Residency(8, 64 * KIB)
    assert residency(TURING, 128, 32, 65 * KIB).blocks == 0
