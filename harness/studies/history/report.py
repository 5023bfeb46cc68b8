"""Renders histories as text for people, and stored rows unchanged for programs."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.execution.judging.verdict import UNSUPPORTED
from harness.execution.results.change import are_apart
from harness.execution.results.kept_row import COLUMNS, KeptRow
from harness.studies.history.timeline import History, Line
from harness.support.errors import UsageError
from harness.support.intervals import Interval
from harness.text.report import Paragraph, Report, Table, Title
from harness.text.tables import UNKNOWN, csv_text, mib, smallest_of

SHOWN_DIGITS = 8
"""Number of digits of a digest that are shown."""
_OBJECTS = ("problem", "versions", "failing_case")
"""Columns that contain JSON."""


@dataclass(frozen=True)
class Shown:
    """The content of `history`."""

    store: Path
    histories: Sequence[History]
    left_out: int
    """Number of older lines beyond --limit."""
    is_empty: bool
    """Whether the store is empty."""
    each_run: bool


def history_report(shown: Shown, rows: Callable[[], Sequence[tuple[Any, ...]]]) -> Report:
    """The report of histories. `rows` returns the rows themselves, with all of `COLUMNS`."""
    return Report(
        paragraphs=lambda: [part for histories in _alike(shown.histories) for part in _paragraphs(histories)],
        notes=lambda: [*_notes(shown)],
        records=lambda: ([dict(zip(COLUMNS, row)) for row in rows()], COLUMNS),
        wraps_notes=False,
        document=lambda: {"store": str(shown.store), "rows": [_object(row) for row in rows()]},
    )


def _object(row: Sequence[Any]) -> Mapping[str, Any]:
    found = dict(zip(COLUMNS, row))
    return found | {name: json.loads(found[name]) for name in _OBJECTS if found[name] is not None}


def _alike(histories: Sequence[History]) -> list[list[History]]:
    """Histories grouped by study, problem and device. Variants that never supported the problem are left to a note."""
    groups: dict[str, list[History]] = {}
    for history in histories:
        if not _is_unsupported(history):
            groups.setdefault(history.setting, []).append(history)
    return list(groups.values())


def _is_unsupported(history: History) -> bool:
    return all(line.figures.verdict == UNSUPPORTED for line in history.lines)


def _paragraphs(histories: Sequence[History]) -> list[Paragraph]:
    return [Title(histories[0].setting), _table(histories)]


@dataclass(frozen=True)
class _Column:
    header: str
    cell: Callable[[str, Line, Line | None], str]
    """Formats a cell from a variant's line and the previous line."""
    number: bool = True
    is_kept: bool = False
    """Whether to show the column even if all its values are unknown."""


def _table(histories: Sequence[History]) -> Table:
    """A table with a line per change, and the difference to the previous line.

    Columns without known values are left out.
    """
    told_of = [(h.variant, line, before) for h in histories for line, before in zip(h.lines, (None, *h.lines))]
    lines = [line for _, line, _ in told_of]
    sizes = (size for line in lines for size in (line.figures.total_bytes, line.figures.claimed_bytes))
    smallest = smallest_of(size for size in sizes if size is not None)
    columns = [
        _Column("variant", lambda name, line, _: name, number=False, is_kept=True),
        _Column("since, UTC", lambda _, line, __: _moment(line.first_at), number=False, is_kept=True),
        _Column("until", lambda _, line, __: UNKNOWN if line.runs == 1 else _moment(line.last_at), number=False),
        _Column("runs", lambda _, line, __: f"{line.runs:,}", is_kept=True),
        _Column("kernel\ndigest", lambda _, line, __: _digest(line), number=False),
        _Column("tile", lambda _, line, __: line.tile or UNKNOWN, number=False),
        _Column("verdict", lambda _, line, __: line.figures.verdict, number=False, is_kept=True),
        _Column("examples", lambda _, line, __: UNKNOWN if line.examples is None else f"{line.examples:,}"),
        _Column("error /\nbudget", lambda _, line, __: _ratio(line.figures.error_over_budget)),
        _Column("", lambda _, line, old: _growth(*_both(line, old, "error_over_budget")), number=False),
        _Column("total\nMiB", lambda _, line, __: mib(line.figures.total_bytes, smallest)),
        _Column("", lambda _, line, old: _growth(*_both(line, old, "total_bytes")), number=False),
        _Column("claimed\nMiB", lambda _, line, __: mib(line.figures.claimed_bytes, smallest)),
        _Column("time\nms", lambda _, line, __: _milliseconds(line.figures.time)),
        _Column("", lambda _, line, old: _time_change(line, old), number=False),
    ]
    if any(line.figures.total_bytes is not None for line in lines):
        columns = [column for column in columns if column.header != "claimed\nMiB"]
    cells = {id(column): [column.cell(*each) for each in told_of] for column in columns}
    shown = [c for c in columns if c.is_kept or any(cell not in ("", UNKNOWN) for cell in cells[id(c)])]
    return Table(
        [column.header for column in shown],
        [[cells[id(column)][number] for column in shown] for number in range(len(lines))],
        [column.number for column in shown],
    )


def _moment(at: str) -> str:
    """A time without its seconds."""
    return at[:16].replace("T", " ")


def _ratio(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}" if value < 100 else f"{value:.1e}"


def _digest(line: Line) -> str:
    return (line.figures.kernel_digest or UNKNOWN)[:SHOWN_DIGITS]


def _milliseconds(time: Interval | None) -> str:
    return UNKNOWN if time is None else f"{time.median:,.4f}"


def _both(line: Line, old: Line | None, figure: str) -> tuple[Any, Any]:
    return None if old is None else getattr(old.figures, figure), getattr(line.figures, figure)


def _growth(before: float | None, after: float | None) -> str:
    """The change in percent; empty if there is none or if a value is unknown."""
    if before is None or after is None or before == after:
        return ""
    if not before:
        return "from 0"
    percent = f"{100 * (after / before - 1):+.2f}"
    # A change that rounds to 0 is shown nevertheless.
    return f"{after - before:+,}" if float(percent) == 0 and isinstance(before, int) else f"{percent} %"


def _time_change(line: Line, old: Line | None) -> str:
    before, after = _both(line, old, "time")
    if before is None or after is None:
        return ""
    return _growth(before.median, after.median) if are_apart(before, after) else "noise"


def _notes(shown: Shown) -> Iterator[str]:
    if shown.is_empty:
        yield f"No results are stored in {shown.store}; compare, bench, traffic, fuzz and tune store them with --keep."
        return
    if not shown.histories:
        yield f"No result that is stored in {shown.store} matches."
        return
    what = "a line per run" if shown.each_run else "a line per change"
    older = f"; {shown.left_out:,} older lines are left out, --limit shows more" if shown.left_out else ""
    yield f"Stored in {shown.store}; {what}{older}."
    if any(line.figures.total_bytes is not None for history in shown.histories for line in history.lines):
        yield "MiB: 2^20 bytes at the sectors level, before any cache: any difference is a change."
    if any(line.figures.time is not None for history in shown.histories for line in history.lines):
        yield "time: median, of the first run of the line; noise: the 95 % intervals of both medians overlap."
    if refused := sorted({history.variant for history in shown.histories if _is_unsupported(history)}):
        yield f"Did not support the problem: {', '.join(refused)}."
    for history in shown.histories:
        last = history.lines[-1]
        if last.reason is not None and last.figures.verdict in ("undecided", "fail", "error"):
            yield f"{history.variant}, {history.study}: {last.figures.verdict}: {' '.join(last.reason.split())}"


Rows = Sequence[tuple[Any, ...]]


def require_exportable(path: Path) -> None:
    """Raise `UsageError` if the file's suffix is unknown, or if the library for that format is missing."""
    if path.suffix not in _KINDS:
        raise UsageError(f"cannot export to {path}: its name has to end in {' or '.join(_KINDS)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise UsageError(f"cannot export to {path}: {error}; pip install pyarrow, or name a .csv") from error


def exported(rows: Rows, suffix: str) -> bytes:
    """Rows with all of `COLUMNS`, as a file of that type."""
    return _KINDS[suffix](rows)


def _csv(rows: Rows) -> bytes:
    return csv_text([dict(zip(COLUMNS, row)) for row in rows], COLUMNS).encode()


def _parquet(rows: Rows) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string()}
    types = {field.name: kinds[str(field.type).partition(" ")[0]] for field in dataclasses.fields(KeptRow)}
    types["kept_at"] = pyarrow.timestamp("ms", tz="UTC")
    at = COLUMNS.index("kept_at")
    columns: Mapping[str, list[Any]] = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    columns[COLUMNS[at]][:] = [datetime.fromisoformat(moment.replace("Z", "+00:00")) for moment in columns["kept_at"]]
    table = pyarrow.table({name: pyarrow.array(columns[name], types[name]) for name in COLUMNS})
    target = io.BytesIO()
    parquet.write_table(table, target)
    return target.getvalue()


_KINDS: Mapping[str, Callable[[Rows], bytes]] = {".csv": _csv, ".parquet": _parquet}
