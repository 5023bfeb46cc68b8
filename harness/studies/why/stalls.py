"""Cost of waits for loads that other warps on the multiprocessor do not hide; see docs/predicted-time.md."""

from __future__ import annotations

from dataclasses import dataclass

from harness.execution.traffic.instruction_counts import BARRIER
from harness.studies.why.profile import LaunchProfile, Profile
from harness.studies.why.shares import PLACELESS
from harness.support.gpu_data_sheets import Gpu
from harness.support.pipe_rates import DRAM_LATENCY_CYCLES, L1_LATENCY_CYCLES, L2_LATENCY_CYCLES, rates_of


@dataclass(frozen=True)
class Stalls:
    """The waits of one launch's warps."""

    waits: float
    """Number of waits per warp."""
    stall_cycles: float
    """Mean duration of a wait during which no other warp has work."""
    busy_cycles: float
    """Busy cycles of a multiprocessor between two waits of one block, or of one warp if warps do not synchronize."""
    together: float
    """Number of blocks, or warps, on a multiprocessor that hide each other's waits."""
    rounds: float
    """Number of consecutive rounds of that many blocks or warps on the busiest multiprocessor."""
    where: tuple[str, int] = PLACELESS
    """The global memory load with the longest waits."""
    local_share: float = 0.0
    """Share of the stall cycles, from 0 to 1, that is due to local memory."""
    local_where: tuple[str, int] = PLACELESS
    """The local memory load with the longest waits."""

    def cycles(self, together: float | None = None) -> float:
        """Cycles in which no warp on the busiest multiprocessor has work, if `together` of them hide each other."""
        if not self.waits or self.stall_cycles <= 0:
            return 0.0
        count = self.together if together is None else together
        exposed = _round_cycles(self.busy_cycles, self.stall_cycles, count) - self.busy_cycles
        return self.rounds * self.together * self.waits * exposed


def _round_cycles(busy: float, stall: float, customers: float) -> float:
    """Cycles between two visits of a customer to a multiprocessor shared by `customers`, by mean value analysis.

    Each customer stalls between its visits: one queue and a delay. Reiser and Lavenberg 1980, "Mean-Value Analysis of
    Closed Multichain Queuing Networks".
    """
    queue, round_cycles = 0.0, busy + stall
    for customer in range(1, max(1, round(customers)) + 1):
        response = busy * (1 + queue)
        throughput = customer / (response + stall)
        queue, round_cycles = throughput * response, 1 / throughput
    return round_cycles


def blocks_there(launch: LaunchProfile, gpu: Gpu) -> int:
    """Resident blocks per multiprocessor: fewer than fit if the grid has no more."""
    return min(launch.resident_blocks, -(-launch.blocks // gpu.multiprocessors))


def warps_there(launch: LaunchProfile, gpu: Gpu) -> int:
    """Resident warps per multiprocessor, of the busiest ones."""
    return blocks_there(launch, gpu) * launch.warps


def launch_of_fewest_warps(profile: Profile, gpu: Gpu) -> LaunchProfile:
    """The launch with the fewest resident warps per multiprocessor."""
    return min(profile.launches, key=lambda launch: warps_there(launch, gpu))


def is_limited_by_grid(launch: LaunchProfile, gpu: Gpu) -> bool:
    """Whether a multiprocessor has room for more blocks than the grid has for it."""
    return blocks_there(launch, gpu) < launch.resident_blocks


def stalls_of(launch: LaunchProfile, gpu: Gpu, busy_cycles: float) -> Stalls:
    """The stalls of one launch.

    `busy_cycles` are those of a multiprocessor for all of its blocks, distributed evenly.
    """
    report = launch.instructions
    per_sm = launch.blocks / gpu.multiprocessors
    waits = sum(row.waits for row in report.waits) / max(1, report.followed_warps)
    block_cycles = busy_cycles / per_sm
    resident = blocks_there(launch, gpu)
    is_together = any(row.kind == BARRIER and row.form.startswith("bar") and row.warps for row in report.counts)
    units = 1 if is_together else launch.warps
    rounds = -(-launch.blocks // gpu.multiprocessors) / resident
    if not waits:
        return Stalls(0, 0, 0, units * resident, rounds)
    executed = sum(row.warps for row in report.counts) / (launch.blocks * launch.warps)
    latency = _latency(launch) + _transfer_cycles(launch, gpu, waits)
    local_latency = _local_latency(launch, gpu, resident)
    stall, local_stall = 0.0, 0.0
    longest, local_longest = (0.0, PLACELESS), (0.0, PLACELESS)
    for row in report.waits:
        # While a warp executes this far, the others on its multiprocessor do the same.
        ahead = row.distance / executed * block_cycles * resident
        share = launch.local_share(row)
        lasts = row.waits * (1 - share) * max(0.0, latency - ahead)
        local_lasts = row.waits * share * max(0.0, local_latency - ahead)
        stall += lasts + local_lasts
        local_stall += local_lasts
        longest = max(longest, (lasts, (row.file, row.line)))
        local_longest = max(local_longest, (local_lasts, (row.file, row.line)))
    mean = stall / max(1, report.followed_warps) / waits
    return Stalls(
        waits,
        mean,
        block_cycles / units / waits,
        units * resident,
        rounds,
        longest[1],
        local_stall / stall if stall else 0.0,
        local_longest[1],
    )


def _transfer_cycles(launch: LaunchProfile, gpu: Gpu, waits: float) -> float:
    """Mean transfer time of the bytes of one wait, with the multiprocessor's part of the bandwidth of L2."""
    if launch.caches is None:
        return 0.0
    moved = sum(row.l2_read_bytes for row in launch.caches.buffers) / (launch.blocks * waits)
    return moved * gpu.multiprocessors / rates_of(gpu).l2_bytes


def _local_latency(launch: LaunchProfile, gpu: Gpu, resident_blocks: int) -> float:
    """Mean latency of a local memory load in cycles: L1's if the stacks of all resident threads fit, else L2's."""
    if launch.used is None:
        return L1_LATENCY_CYCLES
    sm = gpu.multiprocessor
    shared = launch.used.shared_bytes + launch.dynamic_shared_bytes + sm.reserved_shared_bytes
    stacks = launch.used.stack_bytes * launch.threads
    fits = resident_blocks * (stacks + shared) <= sm.l1_bytes
    return L1_LATENCY_CYCLES if fits else L2_LATENCY_CYCLES


def _latency(launch: LaunchProfile) -> float:
    """Mean latency of a global memory load in cycles: L2's, or DRAM's for the share that misses L2."""
    if launch.caches is None:
        return L2_LATENCY_CYCLES
    l2 = sum(row.l2_read_bytes for row in launch.caches.buffers)
    dram = sum(row.dram_read_bytes for row in launch.caches.buffers)
    missed = min(1.0, dram / l2) if l2 else 0.0
    return L2_LATENCY_CYCLES + missed * (DRAM_LATENCY_CYCLES - L2_LATENCY_CYCLES)
