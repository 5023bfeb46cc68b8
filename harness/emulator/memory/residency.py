"""Which blocks of a launch one multiprocessor holds at a time, and how much L1 their shared memory leaves."""

from __future__ import annotations

from dataclasses import dataclass

from harness.support.gpus import Multiprocessor

WARP_THREADS = 32
REGISTERS_PER_ALLOCATION = 256
"""A warp's registers are rounded up to this many."""
SCHEDULERS = 4
"""Each has a quarter of the registers, and its warps have to find room there."""
SHARED_ALLOCATION_BYTES = 128
SMALLEST_L1_USABLE = 22 / 28
"""Of what the largest shared memory leaves.

On an H200, where that is 28 KiB, of a range that one block reads again and again 20 KiB stay; of 24, 28 and 32 KiB 27,
49 and 75 % are missed on each round. 22 KiB that replace any of the older half of a set of 8 lines miss 30, 62 and
78 %. Larger L1s miss as if they replaced the line used longest ago of 4: of 64 KiB in 60 33 % (31 in the model), of 256
KiB in 224 63 % (62).
"""


@dataclass(frozen=True)
class Residency:
    """What one multiprocessor does with the blocks of one kernel."""

    blocks: int
    """That run at the same time; 0 where not even one fits."""
    l1_bytes: int
    """Of L1 that keep data."""
    l1_random: bool = False
    """Whether L1 replaces any of the older half of a set's lines, and not the one that was used longest ago."""


def residency(sm: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Residency:
    """Of a kernel with `threads` per block, `registers` per thread and `shared_bytes` per block, static and dynamic.

    The limits are those of the CUDA occupancy calculator. Of the sizes that shared memory can have, the driver takes
    the smallest at which shared memory is not what limits the blocks; it asks for registers and the number of blocks,
    not for threads (seen on an H200: `launch__shared_mem_config_size` of kernels with each of these limits).
    """
    warps = -(-threads // WARP_THREADS)
    per_warp = _rounded(max(1, registers) * WARP_THREADS, REGISTERS_PER_ALLOCATION)
    by_registers = sm.registers // per_warp // SCHEDULERS * SCHEDULERS // warps
    per_block = _rounded(shared_bytes, SHARED_ALLOCATION_BYTES) + sm.reserved_shared_bytes
    wanted = min(by_registers, sm.blocks)

    def by_shared(carve_out_bytes: int) -> int:
        return min(wanted, carve_out_bytes // per_block) if per_block else wanted

    most = by_shared(max(sm.carve_outs_bytes))
    # All that the driver takes for itself has to fit, were there as many blocks as there can be.
    least = sm.blocks * sm.reserved_shared_bytes
    carve_out = min(size for size in sm.carve_outs_bytes if size >= least and by_shared(size) == most)
    blocks = min(most, sm.threads // (WARP_THREADS * warps))
    if carve_out == max(sm.carve_outs_bytes):
        return Residency(blocks, round(SMALLEST_L1_USABLE * (sm.l1_bytes - carve_out)), l1_random=True)
    return Residency(blocks, sm.l1_bytes - carve_out)


def _rounded(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit
