"""What each source line of a variant's kernels costs, in all launches: bytes, sectors, bank conflicts, findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.execution.counts import LOCAL, Count, SharedTraffic
from harness.execution.traffic_account import TrafficAccount
from harness.model.finding import Finding


@dataclass(frozen=True, kw_only=True)
class LineCost:
    """One source line."""

    file: str
    """As the compiler names it; empty where it gave none."""
    line: int
    """0 where the compiler gave none."""
    uses: tuple[str, ...] = ()
    """Buffers and kinds of access, such as `O store`."""
    count: Count = Count()  # noqa: RUF009 (frozen)
    """What its warps asked of global memory."""
    sector_bytes: int = 0
    """Read and written at the `sectors` level: an atomic's count twice."""
    local_bytes: int = 0
    """The same of the threads' local memory, which is beside the levels."""
    shared_requests: int = 0
    """Warp-wide loads and stores of shared memory."""
    wavefronts: int = 0
    """Rounds that the banks took."""
    ideal_wavefronts: int = 0
    """Rounds without any bank conflict."""
    findings: tuple[Finding, ...] = ()
    """Those that name the line."""

    @property
    def moved_bytes(self) -> int:
        """Of global and of local memory."""
        return self.sector_bytes + self.local_bytes

    @property
    def sectors_per_request(self) -> float | None:
        """None where global memory was not asked for anything."""
        return self.count.sectors / self.count.requests if self.count.requests else None

    @property
    def fewest_sectors_per_request(self) -> float | None:
        """What the distinct bytes of a request fit into."""
        return self.count.ideal_sectors / self.count.requests if self.count.requests else None

    @property
    def wavefronts_per_request(self) -> float | None:
        """None where shared memory was not asked for anything, or nobody counted."""
        return self.wavefronts / self.shared_requests if self.shared_requests else None

    @property
    def fewest_wavefronts_per_request(self) -> float | None:
        """Without any bank conflict."""
        return self.ideal_wavefronts / self.shared_requests if self.shared_requests else None


def line_costs(account: TrafficAccount | None, findings: Iterable[Finding] = ()) -> tuple[LineCost, ...]:
    """Every line that moved a byte or has a finding, by file and line. A finding stands at both of its places."""
    costs: dict[tuple[str, int], LineCost] = {}

    def at(file: str, line: int) -> LineCost:
        return costs.get((file, line)) or LineCost(file=file, line=line)

    for site in account.lines if account is not None else ():
        cost = at(site.file, site.line)
        if site.buffer == LOCAL:
            cost = replace(cost, local_bytes=cost.local_bytes + site.sector_bytes)
        else:
            cost = replace(cost, count=cost.count + site.count, sector_bytes=cost.sector_bytes + site.sector_bytes)
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
