"""What a launch on a device moved, executed and found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from harness.compilers import CompiledKernel
from harness.compilers.ptxas import Resources, resources
from harness.execution.protocol import LaunchReport
from harness.execution.traffic.counts import READS, WRITES, SharedTraffic, SiteTraffic
from harness.model.finding import Finding
from harness.support.errors import UsageError
from harness.support.memory_units import SECTOR_BYTES
from harness.text.tables import table

LEVELS = ("requested", "sectors")
"""Levels of the memory hierarchy at which bytes are counted: by the threads, and in 32-byte sectors behind them."""


@dataclass(frozen=True)
class Moved:
    """Bytes at one level."""

    read: int = 0
    """Bytes read."""
    written: int = 0
    """Bytes written. Those of an atomic count as read, too."""

    def __add__(self, other: Moved) -> Moved:
        return Moved(self.read + other.read, self.written + other.written)


@dataclass(frozen=True)
class LaunchResult:
    """The counts and findings of one launch. `print(result)` shows a table of the bytes by buffer and source line."""

    kernel: str
    """Name of the kernel."""
    grid: tuple[int, ...]
    """Thread blocks in x, y, z."""
    block: tuple[int, ...]
    """Threads per block in x, y, z."""
    shared_bytes: int
    """Dynamic shared memory per block, in bytes."""
    cluster: tuple[int, ...] | None
    """Thread blocks per cluster; None without clusters."""
    report: LaunchReport = field(repr=False)
    """The counts as the sandbox's other results have them."""
    findings: tuple[Finding, ...] | None
    """The sanitizer's findings. None if it is off."""
    compiled: CompiledKernel = field(repr=False)
    """The kernel's PTX."""

    @property
    def traffic(self) -> tuple[SiteTraffic, ...]:
        """Requests, bytes and sectors by buffer, kind of access and source line. Local memory is the buffer `local`."""
        return self.report.traffic or ()

    @property
    def shared(self) -> tuple[SharedTraffic, ...] | None:
        """Requests and passes of shared memory by kind of access and source line; None without `bank_conflicts`."""
        return self.report.shared

    @property
    def warp_instructions(self) -> int:
        """PTX instructions executed by warps."""
        return self.report.warp_instructions or 0

    @property
    def lane_instructions(self) -> int:
        """PTX instructions executed, summed over active threads."""
        return self.report.lane_instructions or 0

    @property
    def resources(self) -> Resources | None:
        """Registers, spills and shared memory by `ptxas`, which runs at the first use; None without it."""
        compiled = self.compiled
        return resources(compiled.ptx, compiled.arch, compiled.entry, compiled.max_registers)

    @property
    def registers(self) -> int | None:
        """32-bit registers per thread; None without `ptxas`."""
        found = self.resources
        return None if found is None else found.registers

    def by_buffer(self, level: str = "sectors") -> dict[str, Moved]:
        """Bytes of each buffer that was accessed. Raises `UsageError` if `level` is not one of `LEVELS`."""
        return _summed(self.traffic, lambda site: site.buffer, level)

    def by_line(self, level: str = "sectors") -> dict[tuple[str, int], Moved]:
        """Bytes of each source line, by file and line. Raises `UsageError` if `level` is not one of `LEVELS`."""
        return _summed(self.traffic, lambda site: (site.file, site.line), level)

    def __str__(self) -> str:
        shown = f"{self.kernel}: grid {self.grid}, block {self.block}, {self.warp_instructions:,} warp instructions"
        if self.registers is not None:
            shown += f", {self.registers} registers"
        parts = [shown, traffic_table(self.traffic)]
        if self.shared:
            parts += ["", shared_table(self.shared)]
        if self.findings is not None:
            parts += [finding.message for finding in self.findings] or ["The sanitizer found nothing."]
        return "\n".join([*parts, *self.report.notes])


def traffic_table(sites: Iterable[SiteTraffic]) -> str:
    """A table of the bytes by buffer, kind of access and source line."""
    rows = [
        [
            site.buffer,
            site.kind,
            _place(site),
            f"{site.requests:,}",
            f"{site.requested_bytes:,}",
            f"{site.sector_bytes:,}",
        ]
        for site in sites
    ]
    headers = ("buffer", "access", "line", "requests", "requested bytes", "sector bytes")
    return table(headers, rows, [False] * 3 + [True] * 3)


def shared_table(rows: Iterable[SharedTraffic]) -> str:
    """A table of the requests and passes of shared memory by kind of access and source line."""
    cells = [
        [
            row.kind,
            _place(row),
            f"{row.requests:,}",
            f"{row.wavefronts:,}",
            f"{row.wavefronts - row.ideal_wavefronts:,}",
        ]
        for row in rows
    ]
    headers = ("shared memory", "line", "requests", "passes", "bank conflicts")
    return table(headers, cells, [False] * 2 + [True] * 3)


def _place(row: SiteTraffic | SharedTraffic) -> str:
    return f"{row.file.rpartition('/')[2]}:{row.line}" if row.file else ""


Key = TypeVar("Key")


def _summed(sites: Iterable[SiteTraffic], key: Callable[[SiteTraffic], Key], level: str) -> dict[Key, Moved]:
    if level not in LEVELS:
        raise UsageError(f"level is {level!r}; choose one of {', '.join(LEVELS)}")
    found: dict[Key, Moved] = {}
    for site in sites:
        bytes_ = SECTOR_BYTES * site.sectors if level == "sectors" else site.requested_bytes
        moved = Moved(bytes_ * (site.kind in READS), bytes_ * (site.kind in WRITES))
        found[key(site)] = found.get(key(site), Moved()) + moved
    return found
