"""Renders a `TrafficAccount` as text: by level, by buffer, by launch, by source line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from textwrap import fill
from typing import Any, TypeVar

from harness.execution.traffic.counts import LOCAL, Count, SharedTraffic, SiteTraffic, TensorTraffic
from harness.execution.traffic.traffic_account import LEVELS, CachePart, HardwareTraffic, Level, Part, TrafficAccount
from harness.model.operation import IoBound
from harness.studies.traffic.devices import device_tables, link_objects, memory_objects
from harness.studies.traffic.notes import footnotes, size_or_zero
from harness.support.source_text import short_name, source_line
from harness.text.report import NOTE_WIDTH, Column, Paragraph, Report, Table, Title, wrong_answer
from harness.text.tables import UNKNOWN, Wrapped, finite, mib, smallest_of

SOURCE_WIDTH = 60
"""Characters of a source line that a table shows."""
NARROW_WIDTH = 36
"""Width of the level descriptions if hardware columns are shown."""


@dataclass(frozen=True)
class TrafficReport:
    """The content of a traffic report."""

    account: TrafficAccount
    bound: IoBound | None
    """The I/O lower bound; None if the on-chip memory is not known."""
    lines: bool
    """Whether to list source lines."""
    tile: str | None = None
    """The tile sizes used; None if the variant declares none."""
    gpu: str | None = None
    """The GPU whose caches were modelled; None if none were."""
    flushed: bool = False
    """Whether every launch began with empty caches."""
    spilled_bytes: int = 0
    """Bytes per thread that ptxas spills to local memory, stored plus loaded, of the kernel with most. No PTX
    instruction moves them, so they are not counted."""


def traffic_report(report: TrafficReport) -> Report:
    """The report of one variant's bytes."""
    return Report(
        paragraphs=lambda: _paragraphs(report),
        notes=lambda: footnotes(report),
        records=lambda: (_flat_rows(report), CSV_KEYS),
        document=lambda: _object(report),
    )


MOST_TIED = 4
"""Maximum number of lines that are named as costliest."""


def share_of(part: int, whole: int) -> str:
    """A part in percent; `UNKNOWN` if the whole is 0."""
    return f"{100 * part / whole:.1f} %" if whole else UNKNOWN


def costliest_line(account: TrafficAccount) -> list[str]:
    """The source lines that move most bytes, over all their buffers and kinds of access; nothing if none is known."""
    by_line: dict[tuple[str, int], dict[str, int]] = {}
    for row in account.lines:
        if row.line and row.sector_bytes:
            by_buffer = by_line.setdefault((row.file, row.line), {})
            by_buffer[row.buffer] = by_buffer.get(row.buffer, 0) + row.sector_bytes
    if not by_line:
        return []
    most, whole = max(sum(by_buffer.values()) for by_buffer in by_line.values()), account.moved_bytes
    places, buffers = [], []
    for (file, line), by_buffer in by_line.items():
        if sum(by_buffer.values()) == most:
            largest_first = sorted(by_buffer.items(), key=lambda each: -each[1])
            places.append(f"{short_name(file).rpartition('/')[2]}:{line}")
            buffers.append(", ".join(f"{name} {share_of(size, whole)}" for name, size in largest_first))
    share = f"{share_of(most, whole)} of the bytes, counted before any cache"
    if len(places) == 1:
        return [f"costliest line: {places[0]} ({buffers[0]}) moves {share}"]
    each = ", ".join(f"{place} ({moved})" for place, moved in zip(places[:MOST_TIED], buffers))
    more = f" and {len(places) - MOST_TIED} more" if len(places) > MOST_TIED else ""
    return [fill(f"costliest lines: {each}{more}; each moves {share}", NOTE_WIDTH)]


def _paragraphs(report: TrafficReport) -> list[Paragraph]:
    account = report.account
    tile = "" if report.tile is None else f"; tile {report.tile}"
    headline = f"{account.problem.headline}; inputs {account.regime}, seed {account.seed}{tile}"
    parts: list[Paragraph] = [f"{account.variant}: {headline}"]
    wrong = wrong_answer(account.variant, account.verdict, account.reason)
    if wrong is not None:
        parts.append(wrong)
    parts.append(_levels(account))
    parts += device_tables(account)
    local = [account.local] if account.local.sector_bytes else []
    parts.append(_parts("buffer", [*account.buffers, *local]))
    parts.append(_parts("launch", account.launches, numbered=True))
    if account.caches is not None:
        parts.append(_cache_parts("buffer", account.caches.buffers))
        if len(account.caches.launches) > 1:
            parts.append(_cache_parts("launch", account.caches.launches, numbered=True))
    if account.hardware is not None:
        parts.append(_hardware(account.hardware))
    if report.lines:
        parts += costliest_line(account)
        parts += _by_file(account.lines, lambda rows: _lines(rows, account), "")
        if account.shared:
            parts += _by_file(account.shared, _shared, "shared memory, ")
        if account.tensor:
            parts += _by_file(account.tensor, _tensor, "tensor memory, ")
    return parts


# Tables --------------------------------------------------------------------------------------------------------------


def _levels(account: TrafficAccount) -> Table:
    compulsory = account.problem.compulsory_bytes
    measured = None if account.hardware is None else {level.name: level for level in account.hardware.levels}
    counted = {level.name: level for level in account.levels}
    cells = []
    for name in LEVELS:
        if name not in counted and name not in (measured or ()):
            continue
        level = counted.get(name, Level(name, None, None))
        total = level.total_bytes
        ratio = UNKNOWN if total is None else f"{total / compulsory:,.2f}"
        row = [name, *(mib(size, compulsory) for size in (level.read_bytes, level.write_bytes, total)), ratio]
        if measured is not None:
            there = measured.get(name, Level(name, None, None))
            row += [mib(there.read_bytes, compulsory), mib(there.write_bytes, compulsory)]
        cells.append([*row, LEVELS[name] if measured is None else Wrapped(fill(LEVELS[name], NARROW_WIDTH))])
    headers = ["level", "read\nMiB", "written\nMiB", "total\nMiB", "total /\ncompulsory"]
    headers += [] if measured is None else ["hardware\nread MiB", "hardware\nwritten MiB"]
    return Table([*headers, "what it is"], cells, [False, *[True] * (len(headers) - 1), False])


def _hardware(hardware: HardwareTraffic) -> Table:
    """Hardware counters by launch; their sums are in the first table."""
    launches = hardware.launches
    sizes = [(size or 0) for launch in launches for level in launch.levels for size in _both(level)]
    smallest = smallest_of(sizes)
    cells = [
        [f"{number} {launch.kernel}", *(mib(size, smallest) for level in launch.levels for size in _both(level))]
        for number, launch in enumerate(launches, start=1)
    ]
    names = [level.name for level in launches[0].levels]
    headers = [f"hardware:\n{name}\n{way} MiB" for name in names for way in ("read", "written")]
    return Table(["launch", *headers], cells, [False, *[True] * len(headers)])


def _both(level: Level) -> tuple[int | None, int | None]:
    return level.read_bytes, level.write_bytes


def _parts(what: str, parts: Sequence[Part], numbered: bool = False) -> Table:
    whole = sum(part.sector_bytes for part in parts)
    smallest = smallest_of(part.sector_bytes for part in parts)
    cells = []
    for number, part in enumerate(parts, start=1):
        sizes = (part.count.requested_bytes, part.read.sector_bytes, part.written.sector_bytes, part.sector_bytes)
        name = f"{number} {part.name}" if numbered else part.name
        share = share_of(part.sector_bytes, whole)
        cells.append([name, *(size_or_zero(size, smallest) for size in sizes), share, *_coalescing(part.count)])
    headers = [what, "requested\nMiB", "read\nMiB", "written\nMiB", "total\nMiB", "share", *_COALESCING]
    return Table(headers, cells, [False, *[True] * 8])


def _cache_parts(what: str, parts: Sequence[CachePart], numbered: bool = False) -> Table:
    smallest = smallest_of(size for part in parts for size in _sizes(part))
    cells = [
        [f"{number} {part.name}" if numbered else part.name, *(size_or_zero(size, smallest) for size in _sizes(part))]
        for number, part in enumerate(parts, start=1)
    ]
    headers = [what, "L2\nread MiB", "L2\nwritten MiB", "DRAM\nread MiB", "DRAM\nwritten MiB"]
    return Table(headers, cells, [False, *[True] * 4])


def _sizes(part: CachePart) -> list[int]:
    return [size or 0 for level in (part.l2, part.dram) for size in (level.read_bytes, level.write_bytes)]


_COALESCING = ("requests", "sectors /\nrequest", "fewest\npossible")


def _coalescing(count: Count) -> list[str]:
    return [f"{count.requests:,}", _per(count.sectors, count.requests), _per(count.ideal_sectors, count.requests)]


def _lines(rows: Sequence[SiteTraffic], account: TrafficAccount) -> Table:
    smallest = smallest_of(row.count.requested_bytes for row in rows)
    requests, *per_request = _COALESCING
    columns: list[Column[SiteTraffic]] = [
        Column("buffer", lambda row: row.buffer, number=False),
        Column("kind", lambda row: row.kind, number=False),
        Column(requests, lambda row: _coalescing(row.count)[0]),
        Column("requested\nMiB", lambda row: mib(row.count.requested_bytes, smallest)),
        Column("sectors", lambda row: f"{row.count.sectors:,}"),
        Column(per_request[0], lambda row: _coalescing(row.count)[1]),
        Column(per_request[1], lambda row: _coalescing(row.count)[2]),
        Column("share", lambda row: share_of(row.sector_bytes, account.moved_bytes)),
    ]
    return Table.of([_LINE, *columns, _SOURCE], rows)


def _shared(rows: Sequence[SharedTraffic]) -> Table:
    smallest = smallest_of(row.requested_bytes for row in rows)
    columns: list[Column[SharedTraffic]] = [
        Column("kind", lambda row: row.kind, number=False),
        Column("requests", lambda row: f"{row.requests:,}"),
        Column("requested\nMiB", lambda row: mib(row.requested_bytes, smallest)),
        Column("wavefronts", lambda row: f"{row.wavefronts:,}"),
        Column("wavefronts /\nrequest", lambda row: _per(row.wavefronts, row.requests)),
        Column("fewest\npossible", lambda row: _per(row.ideal_wavefronts, row.requests)),
    ]
    return Table.of([_LINE, *columns, _SOURCE], rows)


def _tensor(rows: Sequence[TensorTraffic]) -> Table:
    smallest = smallest_of(row.requested_bytes for row in rows)
    columns: list[Column[TensorTraffic]] = [
        Column("kind", lambda row: row.kind, number=False),
        Column("requests", lambda row: f"{row.requests:,}"),
        Column("MiB", lambda row: mib(row.requested_bytes, smallest)),
    ]
    return Table.of([_LINE, *columns, _SOURCE], rows)


_Row = TypeVar("_Row", SiteTraffic, SharedTraffic, TensorTraffic)


def _by_file(rows: Sequence[_Row], made: Callable[[Sequence[_Row]], Table], prefix: str) -> Iterable[Title | Table]:
    """A title and a table for each file, in the order of the rows."""
    for file in dict.fromkeys(row.file for row in rows):
        yield Title(f"{prefix}{short_name(file) or 'no source line known'}")
        yield made([row for row in rows if row.file == file])


def _source(row: SiteTraffic | SharedTraffic | TensorTraffic) -> str:
    text = source_line(row.file, row.line)
    if text is None:
        return UNKNOWN
    return text if len(text) <= SOURCE_WIDTH else text[: SOURCE_WIDTH - 3].rstrip() + "..."


_LINE: Column[Any] = Column("line", lambda row: str(row.line or UNKNOWN))
_SOURCE: Column[Any] = Column("source", _source, number=False)


def _per(amount: int, requests: int) -> str:
    return f"{amount / requests:,.2f}" if requests else UNKNOWN


# For programs --------------------------------------------------------------------------------------------------------


def _object(report: TrafficReport) -> dict[str, Any]:
    account = report.account
    found: dict[str, Any] = {
        "variant": account.variant,
        "problem": account.problem.to_fields(),
        "regime": account.regime,
        "seed": account.seed,
        "tile": report.tile,
        "device": asdict(account.device),
        "verdict": account.verdict,
        "reason": account.reason,
        "error_over_budget": finite(account.error_over_budget),
        "levels": [_level_object(level) for level in account.levels],
        "claim_holds": account.claim_holds,
        "io_bound": None if report.bound is None else asdict(report.bound),
        "buffers": [_part_object(part) for part in account.buffers],
        "launches": [_part_object(part) for part in account.launches],
        "local": _part_object(account.local),
        "hardware": None if account.hardware is None else _hardware_object(account.hardware),
        "caches": _caches_object(report),
    }
    if account.device_bytes:
        found["links"], found["devices"] = link_objects(account), memory_objects(account)
    if report.lines:
        found["lines"] = [_line_object(row) for row in account.lines]
        found["shared"] = None if account.shared is None else [_shared_object(row) for row in account.shared]
        found["tensor"] = [_shared_object(row) for row in account.tensor]
    return found


def _level_object(level: Level) -> dict[str, Any]:
    return asdict(level) | {"total_bytes": level.total_bytes}


def _hardware_object(hardware: HardwareTraffic) -> dict[str, Any]:
    launches = [
        {"name": launch.kernel, "levels": [_level_object(level) for level in launch.levels]}
        for launch in hardware.launches
    ]
    levels = [_level_object(level) for level in hardware.levels]
    return {"device": asdict(hardware.device), "levels": levels, "launches": launches}


def _caches_object(report: TrafficReport) -> dict[str, Any] | None:
    caches = report.account.caches
    if caches is None:
        return None
    parts = {
        name: [_cache_part_object(part) for part in rows]
        for name, rows in (("buffers", caches.buffers), ("launches", caches.launches))
    }
    return {"gpu": report.gpu, "flushed": report.flushed, "dirty_bytes": caches.dirty_bytes, **parts}


def _cache_part_object(part: CachePart) -> dict[str, Any]:
    return {"name": part.name, **dict(zip(CACHE_KEYS, _sizes(part)))}


def _part_object(part: Part) -> dict[str, Any]:
    return {
        "name": part.name,
        **asdict(part.count),
        "read_requested_bytes": part.read.requested_bytes,
        "write_requested_bytes": part.written.requested_bytes,
        "read_bytes": part.read.sector_bytes,
        "write_bytes": part.written.sector_bytes,
        "total_bytes": part.sector_bytes,
    }


def _line_object(row: SiteTraffic) -> dict[str, Any]:
    place = {"file": row.file, "line": row.line, "source": source_line(row.file, row.line)}
    return {**place, "buffer": row.buffer, "kind": row.kind, **asdict(row.count), "total_bytes": row.sector_bytes}


def _shared_object(row: SharedTraffic | TensorTraffic) -> dict[str, Any]:
    return asdict(row) | {"source": source_line(row.file, row.line)}


CACHE_KEYS = ("l2_read_bytes", "l2_write_bytes", "dram_read_bytes", "dram_write_bytes")
CSV_KEYS = (
    "table", "name", "level", "file", "line", "buffer", "kind", "requests", "requested_bytes", "sectors",
    "ideal_sectors", "wavefronts", "ideal_wavefronts", "read_requested_bytes", "write_requested_bytes", "read_bytes",
    "write_bytes", "total_bytes", "source", *CACHE_KEYS,
    "claimed_bytes", "most_bytes",
)  # fmt: skip
"""Columns of one flat table; `table` says which of the report's tables a row belongs to."""


def _flat_rows(report: TrafficReport) -> list[dict[str, Any]]:
    found = _object(report)
    rows: list[dict[str, Any]] = [{"table": "level", **level} for level in found["levels"]]
    hardware = found["hardware"] or {"levels": (), "launches": ()}
    rows += [{"table": "hardware level", **level} for level in hardware["levels"]]
    for launch in hardware["launches"]:
        rows += [
            {"table": "hardware launch", **level, "name": launch["name"], "level": level["name"]}
            for level in launch["levels"]
        ]
    for what in ("link", "device"):
        parts = found.get(f"{what}s", ())
        rows += [{"table": what, **{key: part[key] for key in CSV_KEYS if key in part}} for part in parts]
    rows += [{"table": "buffer", **part} for part in found["buffers"]]
    rows += [{"table": "launch", **part} for part in found["launches"]]
    rows.append({"table": LOCAL, **found["local"]})
    for what in ("buffers", "launches"):
        rows += [{"table": f"caches: {what}", **part} for part in (found["caches"] or {}).get(what, ())]
    rows += [{"table": "line", **row} for row in found.get("lines", ())]
    rows += [{"table": "shared", **row} for row in found.get("shared") or ()]
    rows += [{"table": "tensor", **row} for row in found.get("tensor", ())]
    return rows
