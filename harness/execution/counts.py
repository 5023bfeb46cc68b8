"""What was counted during one launch, as plain data that can be added up: sectors, wavefronts, what caches leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

SECTOR_BYTES = 32
LOCAL = "local"
"""The buffer that the threads' local memory is counted as."""
VARIABLE = "variable"
"""Before the name of a module's variable, where buffers are named. No buffer has a space in its name."""
READS, WRITES = ("load", "atomic"), ("store", "atomic")
"""Kinds of access. An atomic reads and writes."""


@dataclass(frozen=True)
class Count:
    """What warps asked of memory."""

    requests: int = 0
    """Warp-wide memory instructions."""
    requested_bytes: int = 0
    """Bytes that the active lanes asked for."""
    sectors: int = 0
    """Distinct 32-byte sectors per request, added up."""
    ideal_sectors: int = 0
    """The fewest sectors that the distinct bytes of each request fit into, added up."""

    def __add__(self, other: Count) -> Count:
        return Count(
            self.requests + other.requests,
            self.requested_bytes + other.requested_bytes,
            self.sectors + other.sectors,
            self.ideal_sectors + other.ideal_sectors,
        )

    @property
    def sector_bytes(self) -> int:
        """Bytes at the `sectors` level."""
        return SECTOR_BYTES * self.sectors

    @classmethod
    def of(cls, sites: Iterable[SiteTraffic]) -> Count:
        """All sites together."""
        return sum((site.count for site in sites), cls())


@dataclass(frozen=True)
class SiteTraffic:
    """What memory instructions did to one buffer: a single one, or those of one source line, in one launch or several.

    What is counted is explained at `Count`.
    """

    buffer: str
    """The buffer's name; `local` for the threads' local memory; `variable x` for a module's variable x."""
    kind: str
    """`load`, `store` or `atomic`."""
    file: str
    """Source file of the kernel, as the compiler names it; empty where it gave none."""
    line: int
    """Source line, or 0 where the compiler gave none."""
    requests: int
    requested_bytes: int
    sectors: int
    ideal_sectors: int

    @property
    def place(self) -> tuple[str, str, str, int]:
        """Buffer, kind, file and line."""
        return self.buffer, self.kind, self.file, self.line

    @property
    def count(self) -> Count:
        """The numbers alone."""
        return Count(self.requests, self.requested_bytes, self.sectors, self.ideal_sectors)

    @property
    def sector_bytes(self) -> int:
        """Read and written: an atomic's sectors count twice."""
        return self.count.sector_bytes * ((self.kind in READS) + (self.kind in WRITES))

    def __add__(self, other: SiteTraffic) -> SiteTraffic:
        return SiteTraffic(
            *self.place,
            self.requests + other.requests,
            self.requested_bytes + other.requested_bytes,
            self.sectors + other.sectors,
            self.ideal_sectors + other.ideal_sectors,
        )


@dataclass(frozen=True)
class SharedTraffic:
    """What loads, or stores, did to shared memory: a single one, or those of one source line."""

    kind: str
    """`load` or `store`."""
    file: str
    """Source file of the kernel, as the compiler names it; empty where it gave none."""
    line: int
    """Source line, or 0 where the compiler gave none."""
    requests: int
    """Warp-wide instructions executed."""
    requested_bytes: int
    """Bytes that the active lanes asked for."""
    wavefronts: int
    """Rounds that the 32 banks took, added up."""
    ideal_wavefronts: int
    """Rounds that they would have taken without any bank conflict."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Kind, file and line."""
        return self.kind, self.file, self.line

    def __add__(self, other: SharedTraffic) -> SharedTraffic:
        return replace(
            self,
            requests=self.requests + other.requests,
            requested_bytes=self.requested_bytes + other.requested_bytes,
            wavefronts=self.wavefronts + other.wavefronts,
            ideal_wavefronts=self.ideal_wavefronts + other.ideal_wavefronts,
        )


_Row = TypeVar("_Row", SiteTraffic, SharedTraffic)


def by_place(rows: Iterable[_Row]) -> tuple[_Row, ...]:
    """Rows of the same place added up, in the order of places."""
    found: dict[tuple[str | int, ...], _Row] = {}
    for row in rows:
        place = row.place
        there = found.get(place)
        found[place] = row if there is None else there + row
    return tuple(found[place] for place in sorted(found))


@dataclass(frozen=True)
class CacheTraffic:
    """What the caches left of one buffer's traffic during one launch."""

    buffer: str
    """The buffer's name; `code` for the kernel's own instructions and parameters, which no level above has."""
    l2_read_bytes: int
    """What L1 left of the loads."""
    l2_write_bytes: int
    dram_read_bytes: int
    """What L2 left."""
    dram_write_bytes: int
    """Up to the end of the launch; what was stored late is still in L2."""


@dataclass(frozen=True)
class CacheReport:
    """What the caches left of one launch's traffic. Local memory is no part of it."""

    buffers: tuple[CacheTraffic, ...]
    """Those that were touched."""
    dirty_bytes: int
    """What L2 holds at the end that is not yet in DRAM, of earlier launches too where L2 stays warm."""
