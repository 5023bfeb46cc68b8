"""Bytes of every variant, by level and by buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.execution.outcome import Comparison
from harness.execution.traffic_account import LEVELS, Level, Part, TrafficAccount
from harness.execution.variant_report import VariantReport
from harness.text.page.markup import Cell, Header, escape, heat, identifier, number, paragraph, row, table
from harness.text.page.resource import resource
from harness.text.page.section import Section
from harness.text.tables import UNKNOWN, mib, smallest_of


def bytes_section(comparison: Comparison, reports: Mapping[str, VariantReport]) -> Section:
    """A table of levels and one of buffers, best variant first; those that were not counted are left out."""
    accounts = [
        report.account
        for ranked in comparison.rows
        if (report := reports.get(ranked.variant)) is not None and report.account is not None
    ]
    if not accounts:
        return Section("bytes", "Bytes by level and by buffer", paragraph("Bytes were not counted."))
    names = [name for name in LEVELS if any(name in (level.name for level in each.levels) for each in accounts)]
    levels = "".join(f"<dt>{escape(name)}</dt><dd>{escape(LEVELS[name])}</dd>" for name in names)
    parts = [
        "<h3>By level</h3>",
        table("MiB by level", _level_headers(names), (_level_row(each, names) for each in accounts), sortable=True),
        f'<dl class="levels">{levels}</dl>',
        "<h3>By buffer, at the sectors level</h3>",
        table("MiB by buffer at the sectors level", _buffer_headers(accounts), _buffer_rows(accounts), sortable=True),
        paragraph(
            "MiB: 2^20 bytes, read and written together; below it r read, w written. Shades: share of the most in the "
            "same table. What the threads' local memory moves is part of no level and stands last."
        ),
    ]
    return Section("bytes", "Bytes by level and by buffer", "\n".join(parts), style=resource("bytes_by_level.css"))


def _level_headers(names: Sequence[str]) -> list[Header]:
    return [Header("variant"), *(Header(f"{name}\nMiB", True) for name in names), Header("sectors /\ncompulsory", True)]


def _level_row(each: TrafficAccount, names: Sequence[str]) -> str:
    compulsory = each.problem.compulsory_bytes
    known = {level.name: level for level in each.levels}
    most = max((level.total_bytes or 0 for level in each.levels), default=0)
    cells = [_variant(each)]
    for name in names:
        level = known.get(name)
        total = None if level is None else level.total_bytes
        cells.append(_size(level, compulsory, heat(None if total is None else total / max(1, most))))
    return row([*cells, number(f"{each.sector_bytes / compulsory:,.2f}" if compulsory else UNKNOWN)])


def _variant(each: TrafficAccount) -> Cell:
    return Cell(f'<a href="#source-{identifier(each.variant)}">{escape(each.variant)}</a>', is_head=True)


def _size(level: Level | None, smallest: float, classes: str = "") -> Cell:
    if level is None or level.total_bytes is None:
        return number(UNKNOWN)
    parts = f"r {mib(level.read_bytes, smallest)} &nbsp;w {mib(level.write_bytes, smallest)}"
    return Cell(f'{mib(level.total_bytes, smallest)}<span class="small">{parts}</span>', True, classes)


def _buffer_names(accounts: Sequence[TrafficAccount]) -> list[str]:
    return list(dict.fromkeys(part.name for each in accounts for part in each.buffers))


def _buffer_headers(accounts: Sequence[TrafficAccount]) -> list[Header]:
    return [Header("variant"), *(Header(name, True) for name in _buffer_names(accounts)), Header("local", True)]


def _buffer_rows(accounts: Sequence[TrafficAccount]) -> list[str]:
    names, rows = _buffer_names(accounts), []
    for each in accounts:
        parts = {part.name: part for part in each.buffers}
        smallest = smallest_of([*(part.sector_bytes for part in each.buffers), each.problem.compulsory_bytes])
        cells = [_variant(each)]
        cells += [_part(parts.get(name), smallest, each.sector_bytes) for name in names]
        rows.append(row([*cells, _part(each.local if each.local.sector_bytes else None, smallest, each.sector_bytes)]))
    return rows


def _part(part: Part | None, smallest: float, whole: int) -> Cell:
    if part is None:
        return number("")
    level = Level("sectors", part.read.sector_bytes, part.written.sector_bytes)
    return _size(level, smallest, heat(part.sector_bytes / max(1, whole)))
