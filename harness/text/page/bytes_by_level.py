"""Bytes of every variant, by level and by buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.execution.outcome import Comparison
from harness.execution.traffic.traffic_account import LEVELS, Level, TrafficAccount
from harness.execution.variant_report import VariantReport
from harness.text.page.markup import Cell, Header, escape, heat, identifier, number, paragraph, row, table
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import UNKNOWN, mib, smallest_of


def bytes_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """A table of levels and one of buffers, best variant first, of the variants whose bytes were counted."""
    accounts = [
        report.account
        for ranked in comparison.rows
        if (report := reports.get(ranked.variant)) is not None and report.account is not None
    ]
    if not accounts:
        return Section("bytes", "Bytes by level and by buffer", paragraph("Bytes were not counted."))
    names = [name for name in LEVELS if any(name in (level.name for level in each.levels) for each in accounts)]
    most = (
        max(level.total_bytes or 0 for each in accounts for level in each.levels) / accounts[0].problem.compulsory_bytes
    )
    levels = "".join(f"<dt>{escape(name)}</dt><dd>{escape(LEVELS[name])}</dd>" for name in names)
    parts = [
        "<h3>By level</h3>",
        table(
            "MiB by level", _level_headers(names), (_level_row(each, names, most) for each in accounts), sortable=True
        ),
        f'<dl class="levels">{levels}</dl>',
        "<h3>By buffer, at the sectors level</h3>",
        _buffer_table(accounts, "sectors"),
        *(
            f"<details><summary><b>By buffer, at the level {escape(name)}</b></summary>"
            f"<div>{_buffer_table(accounts, name)}</div></details>"
            for name in names
            if name in ("requested", "L2", "DRAM")
        ),
        paragraph(
            "MiB: 2^20 bytes, read and written together; below, which of both, or how much of each (r, w). Shades "
            "above: times the compulsory bytes, on a logarithmic scale; here: the share of the variant's total. "
            "The threads' local memory (local), where there is any, is part of the last column and of no other level."
        ),
    ]
    return Section("bytes", "Bytes by level and by buffer", "\n".join(parts), style=resource("bytes_by_level.css"))


def _level_headers(names: Sequence[str]) -> list[Header]:
    return [Header("variant"), *(Header(f"{name}\nMiB", True) for name in names), Header("total /\ncompulsory", True)]


def _level_row(each: TrafficAccount, names: Sequence[str], most: float) -> str:
    """One row of the levels table. `most` is the largest ratio of bytes to compulsory bytes of any variant."""
    compulsory = each.problem.compulsory_bytes
    known = {level.name: level for level in each.levels}
    cells = [_variant(each)]
    for name in names:
        level = known.get(name)
        times = 0.0 if level is None else (level.total_bytes or 0) / compulsory
        share = math.log(times) / math.log(most) if times > 1 and most > 1 else None
        cells.append(_size(level, compulsory, heat(share)))
    return row([*cells, number(f"{each.moved_bytes / compulsory:,.2f}")])


def _variant(each: TrafficAccount) -> Cell:
    return Cell(f'<a href="#source-{identifier(each.variant)}">{escape(each.variant)}</a>', is_head=True)


def _size(level: Level | None, smallest: float, classes: str = "") -> Cell:
    """The total, followed by bytes read and written."""
    if level is None or level.total_bytes is None:
        return number(UNKNOWN)
    read, written = level.read_bytes, level.write_bytes
    parts = f"r {mib(read, smallest)} &nbsp;w {mib(written, smallest)}"
    if not read or not written:
        parts = "read" if read else "written" if written else ""
    return Cell(f'{mib(level.total_bytes, smallest)}<span class="small">{parts}</span>', True, classes)


def _buffer_table(accounts: Sequence[TrafficAccount], level: str) -> str:
    """Bytes of each buffer at one level; at the `sectors` level including local memory, if any."""
    found = [_of_buffers(each, level) for each in accounts]
    names = list(dict.fromkeys(name for parts in found for name in parts))
    smallest = smallest_of(part.total_bytes or 0 for parts in found for part in parts.values())
    rows = []
    for each, parts in zip(accounts, found):
        whole = sum(part.total_bytes or 0 for part in parts.values())
        cells = [
            _size(part, smallest, heat((part.total_bytes or 0) / max(1, whole))) if part is not None else number("")
            for part in map(parts.get, names)
        ]
        rows.append(row([_variant(each), *cells]))
    headers = [Header("variant"), *(Header(name, True) for name in names)]
    return table(f"MiB by buffer at the level {level}", headers, rows, sortable=True)


def _of_buffers(each: TrafficAccount, level: str) -> dict[str, Level]:
    """Bytes at that level by buffer; empty if that level is not known."""
    if level in ("L2", "DRAM"):
        parts = () if each.caches is None else each.caches.buffers
        return {part.name: part.l2 if level == "L2" else part.dram for part in parts}
    if level == "requested":
        return {p.name: Level(level, p.read.requested_bytes, p.written.requested_bytes) for p in each.buffers}
    moved = [*each.buffers, *([each.local] if each.local.sector_bytes else [])]
    return {p.name: Level(level, p.read.sector_bytes, p.written.sector_bytes) for p in moved}
