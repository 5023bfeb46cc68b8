"""Explains a wrong claim: of which buffers its difference from the count consists, and where they are accessed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.execution.traffic.counts import LOCAL, READS, WRITES, SiteTraffic
from harness.model.problem import BaseProblem
from harness.model.traffic import Traffic
from harness.support.memory_units import SECTOR_BYTES
from harness.support.source_text import short_name

MOST_BUFFERS = 8
"""Combinations of more buffers than this are not tried: one of them would match by chance."""


@dataclass(frozen=True)
class _Access:
    """All reads, or all writes, of one buffer."""

    buffer: str
    counted: int
    """Bytes of the sectors touched."""
    requested: int
    """Bytes that the lanes asked for."""
    once: int | None
    """Bytes of the buffer; None if it is not an input or output of the problem."""
    sites: Sequence[SiteTraffic]

    @property
    def place(self) -> str:
        """The source line that touches most sectors, in parentheses, or nothing."""
        most = max(self.sites, key=lambda site: site.sectors)
        return f" ({short_name(most.file).rpartition('/')[2]}:{most.line})" if most.file else ""

    @property
    def per_request(self) -> str:
        """Sectors touched per request, and the fewest possible."""
        sectors, ideal, requests = (
            sum(getattr(site, name) for site in self.sites) for name in ("sectors", "ideal_sectors", "requests")
        )
        fewest = "" if sectors == ideal else f", where {ideal / requests:.3g} would hold its bytes"
        return f"{sectors / requests:.3g} sectors per request{fewest}"


def claim_gap(claim: Traffic, problem: BaseProblem, sites: Sequence[SiteTraffic]) -> Iterator[str]:
    """Yield a sentence about reads, and one about writes, if the claim differs from the counted accesses, `sites`."""
    buffer_bytes = {tensor.name: tensor.size_bytes for tensor in problem.tensors}
    for what, kinds, claimed in (("read", READS, claim.read_bytes), ("written", WRITES, claim.write_bytes)):
        accesses = list(_accesses([s for s in sites if s.kind in kinds and s.buffer != LOCAL], buffer_bytes))
        counted = sum(access.counted for access in accesses)
        if claimed != counted:
            yield f"{what}: {_difference(claimed, counted)}; {_explanation(accesses, claimed, counted)}"


def _accesses(sites: Sequence[SiteTraffic], buffer_bytes: Mapping[str, int]) -> Iterator[_Access]:
    for buffer in dict.fromkeys(site.buffer for site in sites):
        own = [site for site in sites if site.buffer == buffer and site.requests]
        if own:
            counted = SECTOR_BYTES * sum(site.sectors for site in own)
            yield _Access(buffer, counted, sum(s.requested_bytes for s in own), buffer_bytes.get(buffer), own)


def _difference(claimed: int, counted: int) -> str:
    return f"{abs(counted - claimed):,} bytes {'more' if counted > claimed else 'fewer'} than claimed"


def _explanation(accesses: Sequence[_Access], claimed: int, counted: int) -> str:
    """What would explain the difference exactly, or else the buffer with the most bytes."""
    more = counted - claimed
    some = (lambda access: access.counted - (access.once or access.counted), _read_again)
    whole = (lambda access: access.counted - access.requested, _partly_used)
    left_out = (lambda access: access.counted, _left_out)
    twice = (lambda access: -access.counted, _counted_twice)
    for amount, words in (left_out, whole, some, twice):
        if found := _with_sum(accesses, amount, more):
            return words(found)
    if not accesses:
        return "the kernel has no such access"
    most = max(accesses, key=lambda access: access.counted)
    return f"the buffer with the most bytes is {most.buffer}, {most.counted:,} bytes{most.place}: {most.per_request}"


def _with_sum(accesses: Sequence[_Access], amount: Callable[[_Access], int], total: int) -> Sequence[_Access] | None:
    """The smallest set of buffers whose amounts add up to `total`, each contributing something; None if none does."""
    contributing = [access for access in accesses if amount(access)]
    if len(contributing) > MOST_BUFFERS:
        return None
    for size in range(1, len(contributing) + 1):
        for some in itertools.combinations(contributing, size):
            if sum(amount(access) for access in some) == total:
                return some
    return None


def _names(accesses: Sequence[_Access]) -> str:
    return _listed([f"{access.buffer}{access.place}" for access in accesses])


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _left_out(accesses: Sequence[_Access]) -> str:
    return f"the claim leaves out {_names(accesses)}"


def _counted_twice(accesses: Sequence[_Access]) -> str:
    return f"the claim counts {_names(accesses)} one time too many"


def _partly_used(accesses: Sequence[_Access]) -> str:
    """The claim counts the bytes that the lanes requested, not whole sectors."""
    each = "; ".join(f"{access.buffer}{access.place}: {access.per_request}" for access in accesses)
    return f"memory moves whole sectors of {SECTOR_BYTES} bytes, but the claim counts only the bytes used. {each}"


def _read_again(accesses: Sequence[_Access]) -> str:
    """The claim counts each byte of these buffers once."""
    each = _listed([f"{a.buffer} {a.counted / (a.once or 1):.3g} times{a.place}" for a in accesses])
    scattered = [access for access in accesses if access.counted > access.requested]
    sectors = "".join(f"; {access.buffer}: {access.per_request}" for access in scattered)
    return f"the claim counts every byte once, but the kernel moves {each}{sectors}"
