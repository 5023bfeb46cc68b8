"""Cost of each source line of a variant's kernels over all launches: bytes, sectors, bank conflicts and findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.execution.traffic.counts import LOCAL, Count, SharedTraffic
from harness.execution.traffic.traffic_account import TrafficAccount
from harness.model.finding import Finding


@dataclass(frozen=True, kw_only=True)
class LineCost:
    """Costs of one source line."""

    file: str
    """Source file, as the compiler names it; empty if unknown."""
    line: int
    """Source line; 0 if unknown."""
    uses: tuple[str, ...] = ()
    """Buffers and kinds of access, such as `O store`."""
    buffers: tuple[tuple[str, Count], ...] = ()
    """Traffic of each buffer, including the threads' local memory, with the buffer's name."""
    sector_bytes: int = 0
    """Bytes read plus written at the `sectors` level: an atomic's count twice."""
    local_bytes: int = 0
    """Bytes of the threads' local memory, read plus written at the `sectors` level; not part of `sector_bytes`."""
    shared_requests: int = 0
    """Warp-wide loads and stores of shared memory."""
    wavefronts: int = 0
    """Passes that the shared memory banks took."""
    ideal_wavefronts: int = 0
    """Passes that would be taken without bank conflicts."""
    findings: tuple[Finding, ...] = ()
    """Sanitizer findings that name the line."""

    @property
    def moved_bytes(self) -> int:
        """Bytes of global plus local memory."""
        return self.sector_bytes + self.local_bytes

    @property
    def count(self) -> Count:
        """Global memory traffic of the line."""
        return sum((count for name, count in self.buffers if name != LOCAL), Count())

    @property
    def sectors_per_request(self) -> tuple[tuple[str, float, float], ...]:
        """Each buffer with its average sectors per request, and the fewest that hold a request's distinct bytes."""
        return tuple(
            (name, count.sectors / count.requests, count.ideal_sectors / count.requests)
            for name, count in self.buffers
            if count.requests
        )

    @property
    def wavefronts_per_request(self) -> float | None:
        """Average wavefronts per shared memory request; None if the line makes none or they were not counted."""
        return self.wavefronts / self.shared_requests if self.shared_requests else None

    @property
    def fewest_wavefronts_per_request(self) -> float | None:
        """Average wavefronts per shared memory request without bank conflicts; None as for `wavefronts_per_request`."""
        return self.ideal_wavefronts / self.shared_requests if self.shared_requests else None


def line_costs(account: TrafficAccount | None, findings: Iterable[Finding] = ()) -> tuple[LineCost, ...]:
    """Costs of every line that moved a byte or has a finding, by file and line.

    A finding is listed at both of its places.
    """
    costs: dict[tuple[str, int], LineCost] = {}

    def at(file: str, line: int) -> LineCost:
        return costs.get((file, line)) or LineCost(file=file, line=line)

    for site in account.lines if account is not None else ():
        cost = at(site.file, site.line)
        if site.buffer == LOCAL:
            cost = replace(cost, local_bytes=cost.local_bytes + site.sector_bytes)
        else:
            cost = replace(cost, sector_bytes=cost.sector_bytes + site.sector_bytes)
        buffers = dict(cost.buffers)
        buffers[site.buffer] = buffers.get(site.buffer, Count()) + site.count
        cost = replace(cost, buffers=tuple(buffers.items()))
        use = f"{site.buffer} {site.kind}"
        costs[site.file, site.line] = cost if use in cost.uses else replace(cost, uses=(*cost.uses, use))
    for row in (account.shared or ()) if account is not None else ():
        costs[row.file, row.line] = _with_shared(at(row.file, row.line), row)
    for finding in findings:
        for place in dict.fromkeys((p.file, p.line) for p in (finding.place, finding.other) if p is not None):
            cost = at(*place)
            costs[place] = replace(cost, findings=(*cost.findings, finding))
    return tuple(costs[place] for place in sorted(costs))


def _with_shared(cost: LineCost, row: SharedTraffic) -> LineCost:
    return replace(
        cost,
        shared_requests=cost.shared_requests + row.requests,
        wavefronts=cost.wavefronts + row.wavefronts,
        ideal_wavefronts=cost.ideal_wavefronts + row.ideal_wavefronts,
    )
