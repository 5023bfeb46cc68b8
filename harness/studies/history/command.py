"""`history`: how bytes, error and time of variants went, over what was kept."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.execution.results.place import store_path
from harness.model.operation import Operation, operation_names
from harness.options.command import WHOLE_NUMBER, Command, add_fields_of, argument, argument_type, flag, option
from harness.options.output import add_report, check_output, conclude, tell_written
from harness.options.request import Request
from harness.studies.history.query import Query, parse_since, parse_where
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

if TYPE_CHECKING:
    from harness.studies.history.timeline import History
    from harness.text.study_result import StudyResult

DEFAULT_LIMIT = 40
"""Lines of a table."""
STUDIES = ("compare", "bench", "traffic", "fuzz", "tune")
"""Those that take --keep."""


@dataclass(frozen=True, kw_only=True)
class HistoryRequest(Request):
    """Which of the kept rows to show, and how."""

    variant: Sequence[str] = argument("VARIANT", "names, or shell patterns such as 'fa*' (default: all)", nargs="*")
    study: str | None = option(None, "show only results of one command (default: of all)", choices=STUDIES)
    where: Sequence[tuple[str, Any]] = option(
        "FIELD=VALUE", "show only problems with this value of a field, such as q_len=512 or mask=causal; may be "
        "repeated",
        action="append", type=argument_type(parse_where), default=(),
    )  # fmt: skip
    since: str | None = option(
        "WHEN", "show only results since a date (2026-03-01), a time (2026-03-01T12:00, UTC), or an age (12h, 7d, 4w)",
        type=argument_type(parse_since),
    )  # fmt: skip
    limit: int | None = option(
        "N", f"show only the newest N lines of the table (default: {DEFAULT_LIMIT}); with --format csv or json, and in "
        "--export: only the newest N rows (default: all)", type=WHOLE_NUMBER,
    )  # fmt: skip
    runs: bool = flag("show a line for each run, not for each change")
    plot: Path | None = option("FILE.png|.svg", "plot bytes, error and run time by date", type=Path)
    export: Path | None = option(
        "FILE.csv|.parquet", "write the rows themselves to this file; .parquet needs pyarrow", type=Path
    )

    @property
    def query(self) -> Query:
        """What to ask the store."""
        return Query(tuple(self.variant), self.study, self.operation, self.since, tuple(self.where))


def run_history(request: HistoryRequest) -> int:
    """Run `history`; the exit status."""
    if request.plot is not None:
        from harness.text.drawing import require_drawable

        require_drawable(request.plot)
    if request.export is not None:
        from harness.studies.history.report import require_exportable

        require_exportable(request.export)
    check_output(request.report.output, request.plot, request.export)
    shown = show_history(request)
    if request.plot is not None:
        replace_files({request.plot: shown.pictures["history"](request.plot.suffix)})
    if request.export is not None:
        from harness.studies.history.report import exported

        replace_files({request.export: exported(_rows(request), request.export.suffix)})
    status = conclude(request.report, shown)
    tell_written(request.report, request.plot, request.export)
    return status


def show_history(request: HistoryRequest) -> StudyResult[tuple[History, ...]]:
    """What `history` comes to."""
    from harness.execution.results.store import Store
    from harness.studies.history.report import Shown, history_report
    from harness.studies.history.timeline import COLUMNS, histories, newest
    from harness.text.study_result import StudyResult

    if request.limit is not None and request.limit < 1:
        raise UsageError(f"--limit is {request.limit}; it has to be at least 1")
    path = store_path()
    rows, is_empty = [], True
    if path.exists():
        with Store(path, create=False) as store:
            is_empty = not store.has()
            rows = [] if is_empty else request.query.rows(store, COLUMNS)
    found, left_out = newest(histories(rows, request.runs), request.limit or DEFAULT_LIMIT)
    report = history_report(
        Shown(path, found, left_out, is_empty, request.runs), lambda: [] if is_empty else _rows(request)
    )
    return StudyResult(tuple(found), report, passed=True, pictures={"history": lambda suffix: _drawn(found, suffix)})


def _rows(request: HistoryRequest) -> list[tuple[Any, ...]]:
    """The rows themselves, oldest first; with --limit so many of the newest."""
    from harness.execution.results.kept_row import COLUMNS
    from harness.execution.results.store import open_store

    with open_store(create=False) as store:
        rows = request.query.rows(store, COLUMNS)
    return rows if request.limit is None else rows[-request.limit :]


def _drawn(found: list[History], suffix: str) -> bytes:
    from harness.studies.history.plot import draw_histories, require_few

    require_few(found)
    return draw_histories(found, suffix)


def add_options(parser: argparse.ArgumentParser, operation: Operation) -> None:
    """What can be said to `history`."""
    add_fields_of(HistoryRequest, parser, "variant")
    group = parser.add_argument_group("which results")
    group.add_argument(
        "--operation",
        metavar="NAME",
        help=f"show only results of one operation: {', '.join(operation_names())} (default: of all)",
    )
    add_fields_of(HistoryRequest, group, "study", "where", "since", "limit")
    add_fields_of(HistoryRequest, parser, "runs", "plot", "export")
    add_report(parser)


COMMAND = Command(
    "history",
    "show how bytes, error and time of variants changed over the stored results",
    add_options,
    HistoryRequest,
    run_history,
    show_history,
    examples=(
        ("", "Show how the stored results changed."),
        ("fa2-cupy --since 2026-03-01 --plot history.png", "Plot one variant's results since a date."),
        ("--study bench --where dtype=bfloat16 --export times.csv", "Export stored times as CSV."),
    ),
)
