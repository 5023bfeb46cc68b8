"""Exports stored rows to CSV or Parquet. Parquet has types and distinguishes unknown from empty."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.execution.results.kept_row import COLUMNS, KeptRow
from harness.support.errors import UsageError
from harness.text.tables import csv_text

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
