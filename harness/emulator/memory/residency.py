"""Number of resident blocks per multiprocessor, and the size of L1 that their shared memory leaves."""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.gpu_data_sheets import SCHEDULERS, WARP_LANES, Multiprocessor

REGISTERS_PER_ALLOCATION = 256
"""A warp's registers are rounded up to a multiple of this."""
SHARED_ALLOCATION_BYTES = 128
SMALLEST_L1_USABLE = 22 / 28
"""Usable fraction of L1 with the largest shared memory.  On an H200, where that L1 has 28 KiB, 20 KiB that one block
reads repeatedly stay in L1; of 24, 28 and 32 KiB, 27, 49 and 75 % miss in each round. A model of 22 KiB that replaces a
random line of the older half of a set of 8 misses 30, 62 and 78 %. Larger L1s miss as with least recently used
replacement in sets of 4: with 64 KiB in 60, 33 % (model: 31), with 256 KiB in 224, 63 % (62)."""


@dataclass(frozen=True)
class Residency:
    """Resources of one multiprocessor for the blocks of one kernel."""

    blocks: int
    """Resident blocks; 0 if not even one fits."""
    l1_bytes: int
    """Usable bytes of L1."""
    l1_random: bool = False
    """Whether L1 replaces a random line of the older half of a set, instead of the least recently used line."""


def residency(sm: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Residency:
    """Residency of a kernel: `threads` per block, `registers` per thread, static plus dynamic `shared_bytes` per block.

    The limits are those of the CUDA occupancy calculator. Of the possible sizes of shared memory, the driver chooses
    the smallest for which shared memory does not limit the blocks; it considers registers and the maximum number of
    blocks, but not threads (observed on an H200: `launch__shared_mem_config_size` of kernels with each of these
    limits).
    """
    warps = -(-threads // WARP_LANES)
    per_warp = _rounded(max(1, registers) * WARP_LANES, REGISTERS_PER_ALLOCATION)
    by_registers = sm.registers // per_warp // SCHEDULERS * SCHEDULERS // warps
    per_block = _rounded(shared_bytes, SHARED_ALLOCATION_BYTES) + sm.reserved_shared_bytes
    wanted = min(by_registers, sm.blocks)

    def by_shared(carve_out_bytes: int) -> int:
        return min(wanted, carve_out_bytes // per_block) if per_block else wanted

    most = by_shared(max(sm.carve_outs_bytes))
    # The driver's reserved memory has to fit for the maximum number of blocks.
    least = sm.blocks * sm.reserved_shared_bytes
    carve_out = min(size for size in sm.carve_outs_bytes if size >= least and by_shared(size) == most)
    blocks = min(most, sm.threads // (WARP_LANES * warps))
    if carve_out == max(sm.carve_outs_bytes):
        return Residency(blocks, round(SMALLEST_L1_USABLE * (sm.l1_bytes - carve_out)), l1_random=True)
    return Residency(blocks, sm.l1_bytes - carve_out)


def _rounded(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
