"""Cycles for which a launch occupies each resource of a multiprocessor, by cause; see docs/predicted-time.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.execution.traffic.counts import LOCAL, SiteTraffic
from harness.execution.traffic.instruction_counts import (
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
    InstructionCount,
)
from harness.studies.why import causes
from harness.studies.why.causes import Cause
from harness.studies.why.profile import LaunchProfile
from harness.support.gpu_data_sheets import REGISTER_BYTES, SCHEDULERS, WARP_LANES, Gpu
from harness.support.memory_units import SECTOR_BYTES
from harness.support.pipe_rates import LEAST_CYCLES_PER_INSTRUCTION, PipeRates, clock_hz, rates_of

ISSUE, TENSOR_CORES, SHARED_PATH, L2, DRAM = "issue", "tensor cores", "shared memory and L1", "L2", "DRAM"
PIPES = {INTEGER: "integer pipe", CONVERSION: "conversion pipe", SPECIAL: "special pipe", FP64: "fp64 pipe"}
RESOURCES = (ISSUE, *PIPES.values(), TENSOR_CORES, SHARED_PATH, L2, DRAM)
"""The resources of a multiprocessor, or its part of the GPU's, that can be busy."""

CAUSE_OF_KIND: dict[str, Cause] = {
    FP32: causes.ARITHMETIC, FP16: causes.ARITHMETIC, TENSOR: causes.ARITHMETIC, FP64: causes.FP64,
    SPECIAL: causes.SPECIAL, INTEGER: causes.INTEGER, CONVERSION: causes.CONVERSION, MEMORY: causes.MEMORY,
    SHARED: causes.MEMORY, SHUFFLE: causes.SHUFFLES, CONTROL: causes.CONTROL, BARRIER: causes.BARRIERS,
}  # fmt: skip
ONE_LANE_WILL_DO = (BARRIER, CONTROL, TENSOR, MEMORY)
"""Kinds of instruction whose idle lanes cost nothing, since their cost is counted separately."""
WAVEFRONT_BYTES = 128
PLACELESS = ("", 0)


@dataclass(frozen=True)
class Share:
    """Cycles for which one cause occupies one resource of a multiprocessor, with work distributed evenly."""

    resource: str
    cause: Cause
    cycles: float
    where: tuple[str, int] = PLACELESS
    """Source file and line."""
    buffer: str = ""
    """The buffer, for shares of traffic."""


def cause_of(row: InstructionCount) -> Cause:
    """The cause that an instruction is counted under."""
    if row.kind == MEMORY and LOCAL in row.form.split("."):
        return causes.LOCAL_MEMORY
    return CAUSE_OF_KIND[row.kind]


def totals(shares: Iterable[Share]) -> dict[str, float]:
    """Cycles by resource."""
    found = dict.fromkeys(RESOURCES, 0.0)
    for share in shares:
        found[share.resource] += share.cycles
    return found


def shares_of(launch: LaunchProfile, gpu: Gpu) -> Iterator[Share]:
    """All shares of one launch."""
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
        # A wavefront moves 128 bytes; one that moves less does so only because of idle lanes.
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
    """By source line, the share of lanes that are active in its accesses to shared memory."""
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
    cause = cause_of(row)
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
    """Peak FLOP per second for a matrix instruction's dtype.

    tf32 has half the rate of 16 bits. 8-bit dtypes have the rate of 16 bits unless the GPU has an entry for them.
    """
    words = set(form.split("."))
    sixteen = gpu.tensor_flops["float16"]
    if words & {"tf32", "f64"}:
        return sixteen / 2
    return gpu.tensor_flops.get("e4m3", sixteen) if words & {"e4m3", "e5m2", "s8", "u8"} else sixteen


def _of_traffic(site: SiteTraffic, rates: PipeRates, gpu: Gpu) -> Iterator[Share]:
    """Cycles of the path between registers and L1: 128 bytes per cycle, but one scattered sector per cycle."""
    where = (site.file, site.line)
    ideal = site.ideal_sectors * SECTOR_BYTES / rates.shared_bytes / gpu.multiprocessors
    scattered = (site.sectors - site.ideal_sectors) / gpu.multiprocessors
    if site.buffer == LOCAL:
        yield Share(SHARED_PATH, causes.LOCAL_MEMORY, ideal + scattered, where, LOCAL)
        return
    yield Share(SHARED_PATH, causes.BYTES, ideal, where, site.buffer)
    yield Share(SHARED_PATH, causes.COALESCING, scattered, where, site.buffer)


def _of_caches(launch: LaunchProfile, rates: PipeRates, gpu: Gpu) -> Iterator[Share]:
    """Cycles of L2 and DRAM. What exceeds the minimum of sectors is attributed to coalescing."""
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
    """Cycles of register spills, which PTX does not show.

    Each is assumed to be executed as often as the kernel's mean instruction.
    """
    if launch.used is None:
        return
    texts = sum(row.instructions for row in launch.instructions.counts if row.kind != MOVE)
    accesses = (launch.used.spill_store_bytes + launch.used.spill_load_bytes) / REGISTER_BYTES
    if not accesses or not texts:
        return
    times = accesses * executed / texts
    yield Share(ISSUE, causes.SPILLS, times / SCHEDULERS / sms)
    yield Share(SHARED_PATH, causes.SPILLS, times / sms)


def filled_slots(launch: LaunchProfile, blocks: int) -> float:
    """The share of issue slots that a multiprocessor with this many blocks can fill, at most 1.

    A warp issues no faster than its dependency chains allow, nor faster than one instruction per
    `LEAST_CYCLES_PER_INSTRUCTION`.
    """
    report = launch.instructions
    executed = sum(row.warps for row in report.counts if row.kind != MOVE)
    cycles_each = max(LEAST_CYCLES_PER_INSTRUCTION, report.dependent_cycles / executed) if executed else 1.0
    return min(1.0, blocks * launch.warps / SCHEDULERS / cycles_each)
