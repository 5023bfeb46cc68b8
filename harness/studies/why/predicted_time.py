"""The time that a profile should take on a GPU, as a sum of costs: the model that docs/why.md describes.

Each launch keeps resources busy for so many cycles of one multiprocessor, each cycle for a cause. Resources overlap in
part: busy^2 is the sum of their squares. Uneven work multiplies it, loads that nobody hides and launches are added.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.execution.counts import LOCAL, SECTOR_BYTES, SiteTraffic
from harness.execution.instruction_counts import (
    BARRIER,
    CONTROL,
    CONVERSION,
    FP16,
    FP32,
    FP64,
    INTEGER,
    MEMORY,
    MOVE,
    SHARED,
    SHUFFLE,
    SPECIAL,
    TENSOR,
    WARP_LANES,
    InstructionCount,
)
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.profile import LaunchProfile, Profile
from harness.support.gpus import Gpu
from harness.support.pipe_rates import (
    DRAM_LATENCY_CYCLES,
    L2_LATENCY_CYCLES,
    LAUNCH_SECONDS,
    LEAST_CYCLES_PER_INSTRUCTION,
    SCHEDULERS,
    PipeRates,
    clock_hz,
    rates_of,
)

ISSUE, TENSOR_CORES, SHARED_PATH, L2, DRAM = "issue", "tensor cores", "shared memory and L1", "L2", "DRAM"
PIPES = {INTEGER: "integer pipe", CONVERSION: "conversion pipe", SPECIAL: "special pipe", FP64: "fp64 pipe"}
RESOURCES = (ISSUE, *PIPES.values(), TENSOR_CORES, SHARED_PATH, L2, DRAM)
"""What a multiprocessor, or its part of the GPU, can be busy with."""

CAUSE_OF_KIND: dict[str, Cause] = {
    FP32: causes.ARITHMETIC, FP16: causes.ARITHMETIC, TENSOR: causes.ARITHMETIC, FP64: causes.FP64,
    SPECIAL: causes.SPECIAL, INTEGER: causes.INTEGER, CONVERSION: causes.CONVERSION, MEMORY: causes.MEMORY,
    SHARED: causes.MEMORY, SHUFFLE: causes.SHUFFLES, CONTROL: causes.CONTROL, BARRIER: causes.BARRIERS,
}  # fmt: skip
ONE_LANE_WILL_DO = (BARRIER, CONTROL, TENSOR, MEMORY)
"""Kinds whose idle lanes cost nothing: what they ask for is counted by itself."""
_REGISTER_BYTES = 4
_SPILL_LINE_BYTES = WARP_LANES * _REGISTER_BYTES
WAVEFRONT_BYTES = 128
PLACELESS = ("", 0)


@dataclass(frozen=True)
class Share:
    """Cycles for which a cause keeps one resource of a multiprocessor busy, all of them even."""

    resource: str
    cause: Cause
    cycles: float
    where: tuple[str, int] = PLACELESS
    """Source file and line."""
    buffer: str = ""
    """Of bytes."""


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
    """The load that is waited for longest."""

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


@dataclass(frozen=True)
class LaunchTime:
    """The parts of one launch's time, in cycles of one multiprocessor."""

    shares: tuple[Share, ...]
    tail: float
    """What is to be multiplied with because blocks do not come out even, less 1."""
    imbalance: float
    """The same because blocks differ."""
    stalls: Stalls
    splitting: float = 0.0
    """Cycles that one launch for all that this kernel does would save."""

    @property
    def busy_cycles(self) -> float:
        """Of one multiprocessor if all had the same work."""
        return math.hypot(*totals(self.shares).values())

    @property
    def evenness(self) -> float:
        """How much longer than that the busiest multiprocessor takes."""
        return 1 + self.tail + self.imbalance

    @property
    def cycles(self) -> float:
        """All of it."""
        return self.busy_cycles * self.evenness + self.stalls.cycles() + self.splitting


@dataclass(frozen=True)
class PredictedTime:
    """A variant's time, in parts that add up."""

    gpu: Gpu
    kernels: tuple[LaunchTime, ...]
    """A kernel's launches together."""
    launches: int

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.launches * LAUNCH_SECONDS + sum(kernel.cycles for kernel in self.kernels) / clock_hz(self.gpu)

    @property
    def shares(self) -> tuple[Share, ...]:
        """Of all kernels, weighted such that the squares of their totals add up to the square of `busy_cycles`."""
        whole = [(kernel, kernel.busy_cycles) for kernel in self.kernels]
        busy = sum(cycles for _, cycles in whole)
        squares = dict.fromkeys(RESOURCES, 0.0)
        plain = dict.fromkeys(RESOURCES, 0.0)
        for kernel, cycles in whole:
            for resource, total in totals(kernel.shares).items():
                squares[resource] += total**2 * busy / cycles if cycles else 0.0
                plain[resource] += total
        weight = {name: math.sqrt(squares[name]) / plain[name] if plain[name] else 0.0 for name in RESOURCES}
        return tuple(
            replace(share, cycles=weight[share.resource] * share.cycles)
            for kernel, _ in whole
            for share in kernel.shares
        )

    @property
    def busy_cycles(self) -> float:
        """Of one multiprocessor if all had the same work."""
        return sum(kernel.busy_cycles for kernel in self.kernels)

    def weighted(self, factor: str) -> float:
        """`tail` or `imbalance` of all kernels, in proportion to what they take."""
        busy = self.busy_cycles
        return sum(kernel.busy_cycles * getattr(kernel, factor) for kernel in self.kernels) / busy if busy else 0.0


def totals(shares: Iterable[Share]) -> dict[str, float]:
    """Cycles of each resource."""
    found = dict.fromkeys(RESOURCES, 0.0)
    for share in shares:
        found[share.resource] += share.cycles
    return found


def predict(profile: Profile, gpu: Gpu) -> PredictedTime:
    """The time of all launches."""
    by_kernel: dict[str, list[LaunchProfile]] = {}
    for launch in profile.launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    kernels = tuple(_of_kernel(launches, gpu) for launches in by_kernel.values())
    return PredictedTime(gpu, kernels, len(profile.launches))


def roofline(profile: Profile, gpu: Gpu) -> PredictedTime:
    """The least that the problem can take: its compulsory bytes and its products, and nothing else."""
    problem = profile.problem
    per_second = gpu.multiprocessors * clock_hz(gpu)
    peak = gpu.tensor_flops.get(problem.outputs[0].dtype)
    shares = (
        Share(DRAM, causes.BYTES, problem.compulsory_bytes / gpu.memory_bytes_per_s * clock_hz(gpu)),
        Share(TENSOR_CORES, causes.ARITHMETIC, problem.flops * clock_hz(gpu) / peak)
        if peak
        else Share(ISSUE, causes.ARITHMETIC, problem.flops / 2 / WARP_LANES / SCHEDULERS / per_second * clock_hz(gpu)),
    )
    return PredictedTime(gpu, (LaunchTime(shares, 0.0, 0.0, Stalls(0, 0, 0, 1, 1, 0)),), 1)


def _of_kernel(launches: Sequence[LaunchProfile], gpu: Gpu) -> LaunchTime:
    """All launches of one kernel as if they were one, and what it costs that they are not."""
    times = [_of_launch(launch, gpu) for launch in launches]
    if len(times) == 1:
        return times[0]
    shares = tuple(share for time in times for share in time.shares)
    tail, imbalance = unevenness(_work(launches), gpu.multiprocessors)
    stalls = max((time.stalls for time in times), key=lambda stalls: stalls.cycles())
    stalls = replace(stalls, rounds=sum(time.stalls.rounds for time in times))
    together = LaunchTime(shares, tail, imbalance, stalls)
    return replace(together, splitting=sum(time.cycles for time in times) - together.cycles)


def _of_launch(launch: LaunchProfile, gpu: Gpu) -> LaunchTime:
    shares = tuple(_shares(launch, gpu))
    tail, imbalance = unevenness(_work([launch]), gpu.multiprocessors)
    cycles = totals(shares)
    busy = math.hypot(*cycles.values())
    # Fewer blocks than fit leave more slots empty.
    there = filled_slots(launch, launch.resident_blocks) / filled_slots(launch, _blocks_there(launch, gpu))
    longer = math.hypot(*{**cycles, ISSUE: cycles[ISSUE] * there}.values()) / busy if busy else 1.0
    tail = longer * (1 + tail + imbalance) - 1 - imbalance
    return LaunchTime(shares, tail, imbalance, _stalls(launch, gpu, busy))


def filled_slots(launch: LaunchProfile, blocks: int) -> float:
    """The share of its issue slots that a multiprocessor with so many blocks can fill, at most 1.

    A warp starts its instructions in no less than the cycles that its chains of dependent ones take, nor faster than
    one in `LEAST_CYCLES_PER_INSTRUCTION`.
    """
    report = launch.instructions
    executed = sum(row.warps for row in report.counts if row.kind != MOVE)
    cycles_each = max(LEAST_CYCLES_PER_INSTRUCTION, report.dependent_cycles / executed) if executed else 1.0
    return min(1.0, blocks * launch.warps / SCHEDULERS / cycles_each)


def _work(launches: Sequence[LaunchProfile]) -> list[int]:
    """Of each cluster; all the same where they share it out themselves, which they do otherwise on a GPU."""
    work: list[int] = []
    for report in (launch.instructions for launch in launches):
        mean = sum(report.clusters) // len(report.clusters)
        work += [mean] * len(report.clusters) if report.are_connected else report.clusters
    return work


def unevenness(work: Sequence[int], places: int) -> tuple[float, float]:
    """(tail, imbalance): how much longer than the mean the busiest of `places` works, for it is given whole blocks.

    Blocks go in order to whoever has had least. The first part is that of blocks of the same work each.
    """
    total = sum(work)
    if not total:
        return 0.0, 0.0
    tail = -(-len(work) // places) * places / len(work) - 1
    loads = [0] * min(places, len(work))
    for amount in work:
        heapq.heapreplace(loads, loads[0] + amount)
    return tail, max(loads) * places / total - 1 - tail


# Shares --------------------------------------------------------------------------------------------------------------


def _shares(launch: LaunchProfile, gpu: Gpu) -> Iterator[Share]:
    rates, sms = rates_of(gpu), gpu.multiprocessors
    executed = 0.0
    for row in launch.instructions.counts:
        if row.kind != MOVE:
            executed += row.warps
            yield from _of_instructions(row, rates, gpu)
    slots = executed / SCHEDULERS / sms
    yield Share(ISSUE, causes.DEPENDENT, slots * (1 / filled_slots(launch, launch.resident_blocks) - 1))
    wavefront = WAVEFRONT_BYTES / rates.shared_bytes
    lanes_in_use = _lanes_in_use(launch)
    for shared in launch.shared:
        where = (shared.file, shared.line)
        # A wavefront brings 128 bytes; one that brings less only does so for lanes that idle where lanes do.
        filled = shared.requested_bytes / (WAVEFRONT_BYTES * shared.ideal_wavefronts)
        useful = min(1.0, max(filled, lanes_in_use.get(where, 1.0)))
        ideal = shared.ideal_wavefronts * wavefront / sms
        yield Share(SHARED_PATH, causes.SHARED, useful * ideal, where)
        yield Share(SHARED_PATH, causes.IDLE_LANES, (1 - useful) * ideal, where)
        excess = shared.wavefronts - shared.ideal_wavefronts
        yield Share(SHARED_PATH, causes.CONFLICTS, excess * wavefront / sms, where)
    for site in launch.traffic:
        yield from _of_traffic(site, rates, gpu)
    yield from _of_caches(launch, rates, gpu)
    yield from _of_spills(launch, executed, sms)


def _lanes_in_use(launch: LaunchProfile) -> dict[tuple[str, int], float]:
    """Source line -> the share of lanes that take part in its accesses to shared memory."""
    warps: dict[tuple[str, int], int] = {}
    lanes: dict[tuple[str, int], int] = {}
    for row in launch.instructions.counts:
        if row.kind == SHARED and row.warps:
            where = (row.file, row.line)
            warps[where] = warps.get(where, 0) + row.warps
            lanes[where] = lanes.get(where, 0) + row.lanes
    return {where: lanes[where] / (WARP_LANES * count) for where, count in warps.items()}


def _of_instructions(row: InstructionCount, rates: PipeRates, gpu: Gpu) -> Iterator[Share]:
    where = (row.file, row.line)
    cause = CAUSE_OF_KIND[row.kind]
    useful = 1.0 if row.kind in ONE_LANE_WILL_DO or not row.warps else row.lanes / (WARP_LANES * row.warps)
    per_cycle = {
        INTEGER: rates.integer, CONVERSION: rates.conversion, SPECIAL: rates.special, FP64: rates.fp64,
    }  # fmt: skip
    slots = [(ISSUE, max(1 / SCHEDULERS, WARP_LANES / rates.fp32 if row.kind == FP32 else 0.0))]
    if row.kind in PIPES:
        rate = rates.wide_conversion if row.kind == FP64 and row.form.startswith("cvt") else per_cycle[row.kind]
        slots.append((PIPES[row.kind], WARP_LANES / rate))
    for resource, cycles in slots:
        busy = row.warps * cycles / gpu.multiprocessors
        yield Share(resource, cause, useful * busy, where)
        yield Share(resource, causes.IDLE_LANES, (1 - useful) * busy, where)
    if row.flops:
        yield Share(TENSOR_CORES, cause, row.flops * clock_hz(gpu) / _tensor_peak(row.form, gpu), where)


def _tensor_peak(form: str, gpu: Gpu) -> float:
    """Of a matrix product's factors. tf32 is half as fast as 16 bits; without an entry 8 bits are as fast as those."""
    words = set(form.split("."))
    sixteen = gpu.tensor_flops["float16"]
    if words & {"tf32", "f64"}:
        return sixteen / 2
    return gpu.tensor_flops.get("e4m3", sixteen) if words & {"e4m3", "e5m2", "s8", "u8"} else sixteen


def _of_traffic(site: SiteTraffic, rates: PipeRates, gpu: Gpu) -> Iterator[Share]:
    """What requests take of the path between registers and L1: 128 bytes a cycle, of scattered sectors one."""
    where = (site.file, site.line)
    ideal = site.ideal_sectors * SECTOR_BYTES / rates.shared_bytes / gpu.multiprocessors
    scattered = (site.sectors - site.ideal_sectors) / gpu.multiprocessors
    if site.buffer == LOCAL:
        yield Share(SHARED_PATH, causes.SPILLS, ideal + scattered, where)
        return
    yield Share(SHARED_PATH, causes.BYTES, ideal, where, site.buffer)
    yield Share(SHARED_PATH, causes.COALESCING, scattered, where, site.buffer)


def _of_caches(launch: LaunchProfile, rates: PipeRates, gpu: Gpu) -> Iterator[Share]:
    """What L2 and DRAM are asked for, in cycles of the GPU; above what fewer sectors would be it is for coalescing."""
    sites: dict[str, list[SiteTraffic]] = {}
    for site in launch.traffic:
        sites.setdefault(site.buffer, []).append(site)
    known = {row.buffer: row for row in launch.caches.buffers} if launch.caches is not None else {}
    dram_per_cycle = gpu.memory_bytes_per_s / clock_hz(gpu)
    for buffer, rows in sites.items():
        if buffer == LOCAL:
            continue
        ideal = SECTOR_BYTES * sum(row.ideal_sectors for row in rows)
        where = max(rows, key=lambda row: row.sectors)
        place = (where.file, where.line)
        if buffer in known:
            cached = known[buffer]
            amounts = (cached.l2_read_bytes + cached.l2_write_bytes, cached.dram_read_bytes + cached.dram_write_bytes)
        else:
            amounts = (SECTOR_BYTES * sum(row.sectors for row in rows), 0)
        for resource, amount, per_cycle in ((L2, amounts[0], rates.l2_bytes), (DRAM, amounts[1], dram_per_cycle)):
            yield Share(resource, causes.BYTES, min(amount, ideal) / per_cycle, place, buffer)
            yield Share(resource, causes.COALESCING, max(0, amount - ideal) / per_cycle, place, buffer)


def _of_spills(launch: LaunchProfile, executed: float, sms: int) -> Iterator[Share]:
    """What ptxas spilled, executed as often as the mean instruction of the kernel: the PTX does not show where."""
    if launch.used is None:
        return
    texts = sum(row.instructions for row in launch.instructions.counts if row.kind != MOVE)
    accesses = (launch.used.spill_store_bytes + launch.used.spill_load_bytes) / _REGISTER_BYTES
    if not accesses or not texts:
        return
    times = accesses * executed / texts
    yield Share(ISSUE, causes.SPILLS, times / SCHEDULERS / sms)
    yield Share(SHARED_PATH, causes.SPILLS, times / sms)


# Stalls --------------------------------------------------------------------------------------------------------------


def _blocks_there(launch: LaunchProfile, gpu: Gpu) -> int:
    """That a multiprocessor holds at a time: fewer than fit where the grid has no more."""
    return min(launch.resident_blocks, -(-launch.blocks // gpu.multiprocessors))


def _stalls(launch: LaunchProfile, gpu: Gpu, busy_cycles: float) -> Stalls:
    """`busy_cycles` are those of a multiprocessor, evenly, for all of its blocks."""
    report = launch.instructions
    per_sm = launch.blocks / gpu.multiprocessors
    waits = sum(row.waits for row in report.waits) / max(1, report.followed_warps)
    block_cycles = busy_cycles / per_sm
    resident = _blocks_there(launch, gpu)
    is_together = any(row.kind == BARRIER and row.form.startswith("bar") and row.warps for row in report.counts)
    units = 1 if is_together else launch.warps
    rounds = -(-launch.blocks // gpu.multiprocessors) / resident
    if not waits:
        return Stalls(0, 0, 0, units * resident, units * launch.resident_blocks, rounds)
    executed = sum(row.warps for row in report.counts) / (launch.blocks * launch.warps)
    latency = _latency(launch)
    stall, longest = 0.0, (0.0, PLACELESS)
    for row in report.waits:
        # While a warp gets so far, the others on its multiprocessor get as far.
        ahead = row.distance / executed * block_cycles * resident
        lasts = max(0.0, latency - ahead)
        stall += row.waits * lasts
        longest = max(longest, (row.waits * lasts, (row.file, row.line)))
    mean = stall / max(1, report.followed_warps) / waits
    fitting = units * launch.resident_blocks
    return Stalls(waits, mean, block_cycles / units / waits, units * resident, fitting, rounds, longest[1])


def _latency(launch: LaunchProfile) -> float:
    """Of a load, in the mean: that of L2, and of DRAM for what L2 does not have."""
    if launch.caches is None:
        return L2_LATENCY_CYCLES
    l2 = sum(row.l2_read_bytes for row in launch.caches.buffers)
    dram = sum(row.dram_read_bytes for row in launch.caches.buffers)
    missed = min(1.0, dram / l2) if l2 else 0.0
    return L2_LATENCY_CYCLES + missed * (DRAM_LATENCY_CYCLES - L2_LATENCY_CYCLES)
