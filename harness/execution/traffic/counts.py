"""Memory traffic counted during one launch, as plain data that can be summed: sectors, wavefronts, caches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from harness.support.memory_units import SECTOR_BYTES

if TYPE_CHECKING:
    from typing_extensions import Self

LOCAL = "local"
"""The buffer name under which the threads' local memory is counted."""
VARIABLE = "variable"
"""Prefix of the buffer name of a module's variable. No other buffer name contains a space."""
READS, WRITES = ("load", "atomic"), ("store", "atomic")
"""The kinds of access that read and that write. An atomic does both."""


@dataclass(frozen=True)
class Count:
    """Global memory traffic of the warps' requests."""

    requests: int = 0
    """Warp-wide memory instructions."""
    requested_bytes: int = 0
    """Bytes requested by the active lanes."""
    sectors: int = 0
    """Distinct 32-byte sectors per request, added up."""
    ideal_sectors: int = 0
    """The fewest sectors that hold the distinct bytes of each request, summed over requests."""

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
        """The sum over all sites."""
        return sum((site.count for site in sites), cls())


@dataclass(frozen=True)
class SiteTraffic:
    """Traffic of one or more memory instructions with one buffer: a single instruction, or all on one source line.

    The counters are described at `Count`.
    """

    buffer: str
    """The buffer's name; `local` for the threads' local memory; `variable x` for a module's variable x."""
    kind: str
    """`load`, `store` or `atomic`."""
    file: str
    """Source file of the kernel, as the compiler names it; empty if unknown."""
    line: int
    """Source line; 0 if unknown."""
    requests: int
    requested_bytes: int
    sectors: int
    ideal_sectors: int

    @property
    def place(self) -> tuple[str, str, str, int]:
        """Buffer, kind, file and line, which identify the row."""
        return self.buffer, self.kind, self.file, self.line

    @property
    def count(self) -> Count:
        """The counters without the place."""
        return Count(self.requests, self.requested_bytes, self.sectors, self.ideal_sectors)

    @property
    def sector_bytes(self) -> int:
        """Bytes read plus written at the `sectors` level: an atomic's sectors count twice."""
        return self.count.sector_bytes * ((self.kind in READS) + (self.kind in WRITES))

    def __add__(self, other: SiteTraffic) -> SiteTraffic:
        return replace(self, **vars(self.count + other.count))


@dataclass(frozen=True)
class RequestsOfLine:
    """Requests of a single instruction, or of all on one source line."""

    kind: str
    """What they do, such as `load` or `store`."""
    file: str
    """Source file of the kernel, as the compiler names it; empty if unknown."""
    line: int
    """Source line; 0 if unknown."""
    requests: int
    """Instructions executed by a warp or, for products and copies of Blackwell's tensor cores, by a thread."""
    requested_bytes: int
    """Bytes requested by the active lanes."""

    @property
    def place(self) -> tuple[str, str, int]:
        """Kind, file and line, which identify the row."""
        return self.kind, self.file, self.line

    def __add__(self, other: Self) -> Self:
        numbers = [field.name for field in fields(self) if field.name not in ("kind", "file", "line")]
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in numbers})


@dataclass(frozen=True)
class SharedTraffic(RequestsOfLine):
    """Shared memory traffic; `kind` is `load` or `store`."""

    wavefronts: int
    """Passes that the 32 banks took, summed over requests."""
    ideal_wavefronts: int
    """Passes that the requests would take without bank conflicts."""


@dataclass(frozen=True)
class TensorTraffic(RequestsOfLine):
    """Traffic of tensor memory, and of shared memory that Blackwell's products and copies read.

    `kind` is `load` or `store` of tensor memory, or `operand`: a read of shared memory by a product or copy.
    """


_Row = TypeVar("_Row", SiteTraffic, SharedTraffic, TensorTraffic)


def by_place(rows: Iterable[_Row]) -> tuple[_Row, ...]:
    """Sum rows with the same place; the result is sorted by place."""
    found: dict[tuple[str | int, ...], _Row] = {}
    for row in rows:
        place = row.place
        there = found.get(place)
        found[place] = row if there is None else there + row
    return tuple(found[place] for place in sorted(found))


@dataclass(frozen=True)
class CacheTraffic:
    """L2 and DRAM traffic of one buffer during one launch, as modelled."""

    buffer: str
    """The buffer's name; `code` for the kernel's own instructions and parameters, which other levels do not count."""
    l2_read_bytes: int
    """Bytes of loads that miss L1 and reach L2."""
    l2_write_bytes: int
    dram_read_bytes: int
    """Bytes read from DRAM after an L2 miss."""
    dram_write_bytes: int
    """Bytes written back to DRAM until the launch ends; later stores may still lie in L2."""


@dataclass(frozen=True)
class CacheReport:
    """L2 and DRAM traffic of one launch, as modelled. Local memory is not included."""

    buffers: tuple[CacheTraffic, ...]
    """One entry per buffer that was accessed."""
    dirty_bytes: int
    """Dirty bytes in L2 when the launch ends, including those of earlier launches if L2 stays warm."""
