"""Breakdown of a variant's traffic by level, buffer, launch and source line. Plain data, summed over one execution.

Levels from the top: compulsory and claimed are formulas; requested and sectors are counted at each warp's requests; L2
and DRAM come from the cache model.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from harness.execution.protocol import Device, Execution, LaunchReport
from harness.execution.run_settings import RunSettings
from harness.execution.traffic.claim_gap import claim_gap
from harness.execution.traffic.counts import (
    LOCAL,
    READS,
    WRITES,
    CacheTraffic,
    Count,
    SharedTraffic,
    SiteTraffic,
    TensorTraffic,
    by_place,
)
from harness.model.problem import BaseProblem
from harness.model.traffic import Link, Traffic, link_bytes

LEVELS = {
    "compulsory": "every input read once, every output written once",
    "claimed": "the variant's claim",
    "requested": "bytes that the active lanes requested",
    "sectors": "32-byte sectors that each warp's requests touch, before any cache",
    "local": "the same for local memory, in addition to sectors",
    "tensor": "bytes of Blackwell's tensor memory that loads, stores and products access",
    "links": "bytes that copies move between devices: sent, and received",
    "L2": "bytes that pass between L1 and L2",
    "DRAM": "bytes that pass between L2 and DRAM",
}
"""Every level with its description, from the fewest assumptions about hardware to the most."""


@dataclass(frozen=True)
class Level:
    """Bytes at one level."""

    name: str
    """A key of `LEVELS`."""
    read_bytes: int | None
    """Bytes read; None if unknown."""
    write_bytes: int | None
    """Bytes written; None if unknown."""

    @property
    def total_bytes(self) -> int | None:
        """Bytes read plus written."""
        return None if self.read_bytes is None or self.write_bytes is None else self.read_bytes + self.write_bytes


@dataclass(frozen=True)
class Part:
    """One line of a breakdown: a buffer or a launch."""

    name: str
    """Name of the buffer or kernel."""
    count: Count
    """All accesses; an atomic counts once."""
    read: Count
    """Loads and atomics."""
    written: Count
    """Stores and atomics."""

    @property
    def sector_bytes(self) -> int:
        """Bytes read plus written."""
        return self.read.sector_bytes + self.written.sector_bytes


@dataclass(frozen=True)
class HardwareLaunch:
    """The GPU's hardware counters for one launch."""

    kernel: str
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class HardwareTraffic:
    """The GPU's hardware counters for the same plan and inputs; each launch starts with empty caches."""

    device: Device
    launches: tuple[HardwareLaunch, ...]

    @property
    def levels(self) -> tuple[Level, ...]:
        """Levels summed over all launches; a value that is unknown for one launch is None."""
        return tuple(_added(parts) for parts in zip(*(launch.levels for launch in self.launches)))


def _added(levels: Sequence[Level]) -> Level:
    """Sum one level over several launches."""
    reads, writes = _sum(level.read_bytes for level in levels), _sum(level.write_bytes for level in levels)
    return Level(levels[0].name, reads, writes)


def _sum(values: Iterable[int | None]) -> int | None:
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


@dataclass(frozen=True)
class CachePart:
    """One line of a breakdown of modelled cache traffic: a buffer or a launch."""

    name: str
    """Name of the buffer or kernel. The buffer `code` is instruction and parameter fetches."""
    l2: Level
    dram: Level


@dataclass(frozen=True)
class CacheAccount:
    """Modelled cache traffic of a plan."""

    buffers: tuple[CachePart, ...]
    """Buffers that were accessed, in the plan's order."""
    launches: tuple[CachePart, ...]
    """Launches in order."""
    dirty_bytes: int
    """Bytes written that are still in L2 at the end of the plan."""

    @property
    def levels(self) -> tuple[Level, Level]:
        """Totals of L2 and DRAM over all launches."""
        return _added([part.l2 for part in self.launches]), _added([part.dram for part in self.launches])


@dataclass(frozen=True, kw_only=True)
class TrafficAccount:
    """The breakdown of one variant's traffic on one problem."""

    variant: str
    problem: BaseProblem
    regime: str
    seed: int
    device: Device
    levels: tuple[Level, ...]
    """Levels in the order of `LEVELS`; those without data (no claim, no local memory) are left out."""
    claim_holds: bool | None
    """Whether claimed and counted bytes are equal, for reads and for writes; None if nothing is claimed."""
    buffers: tuple[Part, ...]
    """Buffers that were accessed, in the plan's order."""
    launches: tuple[Part, ...]
    """Launches in order, without local memory."""
    local: Part
    """The threads' local memory over all launches, which is not part of the other levels."""
    lines: tuple[SiteTraffic, ...]
    """Traffic by file, line, buffer and kind, including local memory."""
    shared: tuple[SharedTraffic, ...] | None
    """Shared memory traffic by file, line and kind; None if it was not counted."""
    tensor: tuple[TensorTraffic, ...] = ()
    """Traffic of tensor memory by file, line and kind."""
    links: tuple[Link, ...] = ()
    """Bytes that copies moved between devices."""
    claimed_links: tuple[Link, ...] | None = None
    """The same by the variant's claim; None if it claims nothing."""
    device_bytes: tuple[int, ...] = ()
    """Bytes that each device holds; empty if there is one device."""
    hardware: HardwareTraffic | None = None
    """Hardware counters; None if no GPU was used or it reported none."""
    caches: CacheAccount | None = None
    """Modelled cache traffic; None if no caches were modelled."""
    verdict: str | None = None
    """One of `VERDICTS`; None if the answer of the counted run was not checked."""
    reason: str | None = None
    """Why the verdict is not `pass`; None if it is."""
    error_over_budget: float | None = None
    """Largest ratio of error to budget of the main output; above 1 is wrong."""
    claim_gap: tuple[str, ...] = ()
    """What a wrong claim lacks, in words; empty if it is right."""

    def level(self, name: str) -> Level:
        """The level with the given name."""
        return next(level for level in self.levels if level.name == name)

    @property
    def sector_bytes(self) -> int:
        """Bytes read plus written at the `sectors` level."""
        total = self.level("sectors").total_bytes
        assert total is not None
        return total

    @property
    def moved_bytes(self) -> int:
        """Bytes of global plus local memory at the `sectors` level: the denominator of shares and of rooflines."""
        return self.sector_bytes + self.local.sector_bytes


def account(
    variant: str,
    problem: BaseProblem,
    settings: RunSettings,
    device: Device,
    execution: Execution,
    claim: Traffic | None,
    buffer_order: Iterable[str],
    device_bytes: tuple[int, ...] = (),
) -> TrafficAccount:
    """Sum up an execution whose bytes were counted. `device_bytes` are what each device holds (`Plan.device_bytes`)."""
    per_launch = [[*launch.traffic] for launch in execution.launches if launch.traffic is not None]
    assert len(per_launch) == len(execution.launches)
    sites = [site for launch in per_launch for site in launch]
    plain = [site for site in sites if site.buffer != LOCAL]
    by_buffer = _grouped(plain, lambda site: site.buffer)
    whole, local = _part("all", plain), _part(LOCAL, [site for site in sites if site.buffer == LOCAL])
    named = tuple(buffer_order)
    buffer_order = (*named, *sorted(by_buffer.keys() - {*named}))
    caches = _caches(execution.launches, buffer_order)
    shared = [row for launch in execution.launches for row in launch.shared or ()]
    tensor = by_place(row for launch in execution.launches for row in launch.tensor)
    counted = all(launch.shared is not None for launch in execution.launches)
    return TrafficAccount(
        variant=variant,
        problem=problem,
        regime=settings.regime,
        seed=settings.seed,
        device=device,
        levels=_levels(problem, claim, whole, local, tensor, execution.links)
        + (() if caches is None else caches.levels),
        claim_holds=None
        if claim is None
        else claim.holds(whole.read.sector_bytes, whole.written.sector_bytes, execution.links),
        claim_gap=() if claim is None else tuple(claim_gap(claim, problem, sites)),
        buffers=tuple(_part(name, by_buffer[name]) for name in buffer_order if name in by_buffer),
        launches=tuple(
            _part(launch.kernel, [site for site in rows if site.buffer != LOCAL])
            for launch, rows in zip(execution.launches, per_launch)
        ),
        local=local,
        lines=tuple(sorted(by_place(sites), key=lambda row: (row.file, row.line, row.buffer, row.kind))),
        shared=tuple(sorted(by_place(shared), key=lambda row: (row.file, row.line, row.kind))) if counted else None,
        tensor=tuple(sorted(tensor, key=lambda row: (row.file, row.line, row.kind))),
        links=execution.links,
        claimed_links=None if claim is None else claim.links,
        device_bytes=device_bytes if problem.sharing is not None else (),
        caches=caches,
    )


def _levels(
    problem: BaseProblem,
    claim: Traffic | None,
    whole: Part,
    local: Part,
    tensor: Sequence[TensorTraffic],
    links: Sequence[Link],
) -> tuple[Level, ...]:
    levels = [Level("compulsory", problem.compulsory_read_bytes, problem.compulsory_write_bytes)]
    if claim is not None:
        levels.append(Level("claimed", claim.read_bytes, claim.write_bytes))
    levels.append(Level("requested", whole.read.requested_bytes, whole.written.requested_bytes))
    levels.append(Level("sectors", whole.read.sector_bytes, whole.written.sector_bytes))
    if local.sector_bytes:
        levels.append(Level("local", local.read.sector_bytes, local.written.sector_bytes))
    if tensor:
        read, written = (sum(row.requested_bytes for row in tensor if row.kind == kind) for kind in ("load", "store"))
        levels.append(Level("tensor", read, written))
    if links:
        levels.append(Level("links", link_bytes(links), link_bytes(links)))
    return tuple(levels)


def _caches(launches: Iterable[LaunchReport], buffer_order: tuple[str, ...]) -> CacheAccount | None:
    reports = [(launch.kernel, launch.caches) for launch in launches if launch.caches is not None]
    if not reports or len(reports) < len(tuple(launches)):
        return None
    by_buffer = _grouped((row for _, report in reports for row in report.buffers), lambda row: row.buffer)
    others = tuple(name for name in by_buffer if name not in buffer_order)
    return CacheAccount(
        tuple(_cache_part(name, by_buffer[name]) for name in (*buffer_order, *others) if name in by_buffer),
        tuple(_cache_part(kernel, report.buffers) for kernel, report in reports),
        reports[-1][1].dirty_bytes,
    )


def _cache_part(name: str, rows: Iterable[CacheTraffic]) -> CachePart:
    rows = tuple(rows)
    return CachePart(
        name,
        Level("L2", sum(row.l2_read_bytes for row in rows), sum(row.l2_write_bytes for row in rows)),
        Level("DRAM", sum(row.dram_read_bytes for row in rows), sum(row.dram_write_bytes for row in rows)),
    )


def _part(name: str, sites: list[SiteTraffic]) -> Part:
    return Part(
        name,
        Count.of(sites),
        read=Count.of(site for site in sites if site.kind in READS),
        written=Count.of(site for site in sites if site.kind in WRITES),
    )


_Row = TypeVar("_Row")
_Key = TypeVar("_Key", bound=Hashable)


def _grouped(rows: Iterable[_Row], key: Callable[[_Row], _Key]) -> dict[_Key, list[_Row]]:
    groups: dict[_Key, list[_Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
