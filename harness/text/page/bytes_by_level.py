"""Bytes of every variant, by level and by buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.execution.outcome import Comparison
from harness.execution.traffic.traffic_account import LEVELS, Level, TrafficAccount
from harness.execution.variant_report import VariantReport
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.page.templates import render
from harness.text.tables import smallest_of


def bytes_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """A table of levels and one of buffers, best variant first, of the variants whose bytes were counted."""
    accounts = [
        report.account
        for ranked in comparison.rows
        if (report := reports.get(ranked.variant)) is not None and report.account is not None
    ]
    names = [name for name in LEVELS if any(name in (level.name for level in each.levels) for each in accounts)]
    most = max((_total(v) / each.problem.compulsory_bytes for each in accounts for v in each.levels), default=0.0)
    html = render(
        "bytes_by_level.html",
        levels={name: LEVELS[name] for name in names},
        rows=[(each, _levels(each, names, most)) for each in accounts],
        sectors=_Buffers.of(accounts, "sectors"),
        others=[_Buffers.of(accounts, name) for name in names if name in ("requested", "L2", "DRAM")],
    )
    return Section(
        "bytes", "Bytes by level and by buffer", html, style=resource("bytes_by_level.css"), is_empty=not accounts
    )


def _total(level: Level | None) -> int:
    """Bytes read and written; 0 if unknown."""
    return 0 if level is None else level.total_bytes or 0


def _levels(each: TrafficAccount, names: Sequence[str], most: float) -> list[tuple[Level | None, float | None]]:
    """Each level with its shade. `most` is the largest ratio of bytes to compulsory bytes of any variant."""
    known = {level.name: level for level in each.levels}
    times = {name: _total(known.get(name)) / each.problem.compulsory_bytes for name in names}
    shares = {name: math.log(n) / math.log(most) if n > 1 and most > 1 else None for name, n in times.items()}
    return [(known.get(name), shares[name]) for name in names]


@dataclass(frozen=True)
class _Buffers:
    """Bytes of each buffer at one level; at the `sectors` level including local memory, if any."""

    level: str
    names: list[str]
    smallest: float
    rows: list[tuple[str, list[tuple[Level | None, float]]]]
    """Each variant, with the bytes and the shade of each buffer."""

    @classmethod
    def of(cls, accounts: Sequence[TrafficAccount], level: str) -> _Buffers:
        found = [bytes_of_buffers(each, level) for each in accounts]
        names = list(dict.fromkeys(name for parts in found for name in parts))
        rows = []
        for each, parts in zip(accounts, found):
            whole = max(1, sum(map(_total, parts.values())))
            rows.append((each.variant, [(part, _total(part) / whole) for part in map(parts.get, names)]))
        smallest = smallest_of(_total(part) for parts in found for part in parts.values())
        return cls(level, names, smallest, rows)


def bytes_of_buffers(each: TrafficAccount, level: str) -> dict[str, Level]:
    """Bytes at that level by buffer; empty if that level is not known."""
    if level in ("L2", "DRAM"):
        parts = () if each.caches is None else each.caches.buffers
        return {part.name: part.l2 if level == "L2" else part.dram for part in parts}
    if level == "requested":
        return {p.name: Level(level, p.read.requested_bytes, p.written.requested_bytes) for p in each.buffers}
    moved = [*each.buffers, *([each.local] if each.local.sector_bytes else [])]
    return {p.name: Level(level, p.read.sector_bytes, p.written.sector_bytes) for p in moved}
