"""What the waits of warps for loads cost, where others on the multiprocessor do not hide them: see docs/why.md."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.instruction_counts import (
    BARRIER,
)
from harness.studies.why.profile import LaunchProfile
from harness.studies.why.shares import PLACELESS
from harness.support.gpus import Gpu
from harness.support.pipe_rates import (
    DRAM_LATENCY_CYCLES,
    L1_LATENCY_CYCLES,
    L2_LATENCY_CYCLES,
)


@dataclass(frozen=True)
class Stalls:
    """What the waits of one launch's warps cost."""

    waits: float
    """That one warp meets."""
    stall_cycles: float
    """That a wait lasts, in the mean, where nobody else has work."""
    busy_cycles: float
    """Of a multiprocessor between two waits of one block, or of one warp where warps do not wait for each other."""
    together: float
    """Blocks, or warps, of a multiprocessor that hide each other's waits."""
    fitting: float
    """The same in a grid that is large enough."""
    rounds: float
    """How often as many of them follow each other on the busiest multiprocessor."""
    where: tuple[str, int] = PLACELESS
    """The load of global memory that is waited for longest."""
    local_share: float = 0.0
    """Of the cycles, what is waited for local memory: from 0 to 1."""
    local_where: tuple[str, int] = PLACELESS
    """The load of local memory that is waited for longest."""

    def cycles(self, together: float | None = None) -> float:
        """Cycles in which nobody on the busiest multiprocessor has work, with others together than there are."""
        if not self.waits or self.stall_cycles <= 0:
            return 0.0
        count = self.together if together is None else together
        exposed = _round_cycles(self.busy_cycles, self.stall_cycles, count) - self.busy_cycles
        return self.rounds * self.together * self.waits * exposed


def _round_cycles(busy: float, stall: float, customers: float) -> float:
    """Between two visits to a multiprocessor that so many share, of which each stalls in between: mean value analysis.

    Reiser and Lavenberg 1980, "Mean-Value Analysis of Closed Multichain Queuing Networks", for one queue and a delay.
    """
    queue, round_cycles = 0.0, busy + stall
    for customer in range(1, max(1, round(customers)) + 1):
        response = busy * (1 + queue)
        throughput = customer / (response + stall)
        queue, round_cycles = throughput * response, 1 / throughput
    return round_cycles


def blocks_there(launch: LaunchProfile, gpu: Gpu) -> int:
    """That a multiprocessor holds at a time: fewer than fit where the grid has no more."""
    return min(launch.resident_blocks, -(-launch.blocks // gpu.multiprocessors))


def stalls_of(launch: LaunchProfile, gpu: Gpu, busy_cycles: float) -> Stalls:
    """Of one launch; `busy_cycles` are those of a multiprocessor, evenly, for all of its blocks."""
    report = launch.instructions
    per_sm = launch.blocks / gpu.multiprocessors
    waits = sum(row.waits for row in report.waits) / max(1, report.followed_warps)
    block_cycles = busy_cycles / per_sm
    resident = blocks_there(launch, gpu)
    is_together = any(row.kind == BARRIER and row.form.startswith("bar") and row.warps for row in report.counts)
    units = 1 if is_together else launch.warps
    rounds = -(-launch.blocks // gpu.multiprocessors) / resident
    if not waits:
        return Stalls(0, 0, 0, units * resident, units * launch.resident_blocks, rounds)
    executed = sum(row.warps for row in report.counts) / (launch.blocks * launch.warps)
    latency, local_latency = _latency(launch), _local_latency(launch, gpu, resident)
    stall, local_stall = 0.0, 0.0
    longest, local_longest = (0.0, PLACELESS), (0.0, PLACELESS)
    for row in report.waits:
        # While a warp gets so far, the others on its multiprocessor get as far.
        ahead = row.distance / executed * block_cycles * resident
        share = launch.local_share(row)
        lasts = row.waits * (1 - share) * max(0.0, latency - ahead)
        local_lasts = row.waits * share * max(0.0, local_latency - ahead)
        stall += lasts + local_lasts
        local_stall += local_lasts
        longest = max(longest, (lasts, (row.file, row.line)))
        local_longest = max(local_longest, (local_lasts, (row.file, row.line)))
    mean = stall / max(1, report.followed_warps) / waits
    fitting = units * launch.resident_blocks
    return Stalls(
        waits,
        mean,
        block_cycles / units / waits,
        units * resident,
        fitting,
        rounds,
        longest[1],
        local_stall / stall if stall else 0.0,
        local_longest[1],
    )


def _local_latency(launch: LaunchProfile, gpu: Gpu, resident_blocks: int) -> float:
    """Of a load of local memory: that of L1 where the stacks of all resident threads fit there, else of L2."""
    if launch.used is None:
        return L1_LATENCY_CYCLES
    sm = gpu.multiprocessor
    shared = launch.used.shared_bytes + launch.dynamic_shared_bytes + sm.reserved_shared_bytes
    stacks = launch.used.stack_bytes * launch.threads
    fits = resident_blocks * (stacks + shared) <= sm.l1_bytes
    return L1_LATENCY_CYCLES if fits else L2_LATENCY_CYCLES


def _latency(launch: LaunchProfile) -> float:
    """Of a load, in the mean: that of L2, and of DRAM for what L2 does not have."""
    if launch.caches is None:
        return L2_LATENCY_CYCLES
    l2 = sum(row.l2_read_bytes for row in launch.caches.buffers)
    dram = sum(row.dram_read_bytes for row in launch.caches.buffers)
    missed = min(1.0, dram / l2) if l2 else 0.0
    return L2_LATENCY_CYCLES + missed * (DRAM_LATENCY_CYCLES - L2_LATENCY_CYCLES)
