"""The store: one SQLite file for the rows that studies store, and for finished units of work.

Any number of processes may read and write concurrently: the file uses write-ahead logging (WAL), a process that finds
it busy waits, and dependent writes form one transaction. If a process is killed, a transaction is either complete or
absent. The file has to be on a local disk, since WAL shares memory between processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from harness.execution.results.kept_row import COLUMNS, KeptRow
from harness.execution.results.place import DIRECTORY_VARIABLE, store_path
from harness.support.errors import StoreError
from harness.support.printable import encodable

BUSY_SECONDS = 30.0
"""How long to wait for other writers. A transaction takes milliseconds."""
_RETRY_SECONDS = 0.01
_INSERT = f"INSERT INTO kept ({', '.join(COLUMNS[1:])}) VALUES ({', '.join('?' * len(COLUMNS[1:]))})"


def unit_key(*parts: Any) -> str:
    """Key of a unit of work: a digest of everything that its result depends on, serialized as JSON in this order.

    The order of dict items is ignored. Raises `TypeError` for values without a JSON equivalent.
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()


APPLICATION_ID = 0x41545342
"""File format ID (`PRAGMA application_id`), ASCII `ATSB`, which distinguishes a store from other SQLite files."""

_KEPT = """
CREATE TABLE kept (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kept_at TEXT NOT NULL,
    study TEXT NOT NULL,
    operation TEXT NOT NULL,
    problem TEXT,
    headline TEXT,
    regime TEXT,
    seed INTEGER,
    variant TEXT NOT NULL,
    algorithm TEXT,
    backend TEXT,
    tile TEXT,
    asked_tile TEXT,
    kernel_digest TEXT,
    device_kind TEXT,
    device TEXT,
    arch TEXT,
    driver TEXT,
    versions TEXT,
    verdict TEXT NOT NULL,
    reason TEXT,
    max_abs_error REAL,
    error_over_budget REAL,
    error_over_expected REAL,
    compulsory_bytes INTEGER,
    claimed_bytes INTEGER,
    requested_bytes INTEGER,
    read_bytes INTEGER,
    write_bytes INTEGER,
    l2_read_bytes INTEGER,
    l2_write_bytes INTEGER,
    dram_read_bytes INTEGER,
    dram_write_bytes INTEGER,
    gpu_read_bytes INTEGER,
    gpu_write_bytes INTEGER,
    gpu_l2_read_bytes INTEGER,
    gpu_l2_write_bytes INTEGER,
    gpu_dram_read_bytes INTEGER,
    gpu_dram_write_bytes INTEGER,
    allocated_bytes INTEGER,
    launches INTEGER,
    time_ms REAL,
    time_low_ms REAL,
    time_high_ms REAL,
    sustained_ms REAL,
    findings INTEGER,
    examples INTEGER,
    refused INTEGER,
    failing_case TEXT
)
"""
_UNITS = """
CREATE TABLE finished_units (
    key TEXT PRIMARY KEY,
    payload TEXT NOT NULL,
    finished_at TEXT NOT NULL
) WITHOUT ROWID
"""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (_KEPT, "CREATE INDEX kept_by_variant ON kept (variant, id)", _UNITS),
    ("ALTER TABLE kept ADD COLUMN local_bytes INTEGER",),
)
"""Migrations: the statements that lead from schema 0 (an empty file) to 1, then from 1 to 2, and so on.  A released
migration is never edited: a new column needs a new entry here and a field of `KeptRow`."""
SCHEMA = len(MIGRATIONS)
"""Schema version that this version of the harness writes (`PRAGMA user_version`)."""


class Store:
    """An open store. Threads may share one; a forked process opens its own.

    Every method raises `StoreError`, with a one-line remedy, if the file cannot be used; existing data is not modified
    then.
    """

    def __init__(self, path: Path, *, create: bool = True, busy_seconds: float = BUSY_SECONDS) -> None:
        """Open the store, create it if missing and `create` is true, and migrate an older schema."""
        self.path = path
        self._busy_seconds = busy_seconds
        self._lock = threading.RLock()
        with self._errors_in_one_line():
            self._connection = self._opened(create)
        try:
            with self._errors_in_one_line():
                self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The store cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    # Rows.

    def keep(self, rows: Iterable[KeptRow]) -> int:
        """Insert these rows in one transaction, with the current time. Returns their number."""
        now = _now()
        stamped = (dataclasses.replace(row, kept_at=now) for row in rows)
        values = [[_plain(getattr(row, column)) for column in COLUMNS[1:]] for row in stamped]
        if values:
            with self._writing() as connection:
                connection.executemany(_INSERT, values)
        return len(values)

    def select(
        self, columns: Sequence[str], where: str = "", values: Sequence[str | int | float] = ()
    ) -> list[tuple[Any, ...]]:
        """The values of `columns` for the rows that `rows` would return; faster than building whole rows."""
        assert set(columns) <= set(COLUMNS)
        query = f"SELECT {', '.join(columns)} FROM kept{f' WHERE {where}' if where else ''} ORDER BY id"
        with self._reading() as connection:
            return connection.execute(query, values).fetchall()

    def has(self, where: str = "1", values: Sequence[str | int | float] = ()) -> bool:
        """Whether any row satisfies the condition."""
        with self._reading() as connection:
            found = connection.execute(f"SELECT EXISTS (SELECT 1 FROM kept WHERE {where})", values).fetchone()
        return bool(found[0])

    def rows(self, where: str = "", values: Sequence[str | int | float] = ()) -> list[KeptRow]:
        """Rows that satisfy an SQL condition over the fields of `KeptRow`, oldest first; `values` replace its `?`."""
        return [KeptRow(**dict(zip(COLUMNS, row))) for row in self.select(COLUMNS, where, values)]

    # Units of work.

    def finished(self, key: str) -> Any | None:
        """The result of the unit of work with this key, as passed to `finish`; None if it is not finished.

        A lookup takes microseconds.
        """
        with self._reading() as connection:
            found = connection.execute("SELECT payload FROM finished_units WHERE key = ?", (key,)).fetchone()
        return None if found is None else json.loads(found[0])

    def finish(self, key: str, payload: Any) -> None:
        """Store the result of a unit of work under its key (`unit_key`), replacing any earlier one.

        `payload` is any JSON value except None. It is on disk when this method returns.
        """
        if payload is None:
            raise ValueError("a finished unit's payload is None, which says that it is not finished")
        text = json.dumps(payload)
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO finished_units VALUES (?, ?, ?)", (key, text, _now()))

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the results of these units, such as when the job that they belong to is complete."""
        with self._writing() as connection:
            connection.executemany("DELETE FROM finished_units WHERE key = ?", [(key,) for key in keys])

    # The file.

    def _opened(self, create: bool) -> sqlite3.Connection:
        if self.path.is_dir():
            raise StoreError(f"the store of results {self.path} is a folder; move it away, or set {DIRECTORY_VARIABLE}")
        if create:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        elif not self.path.exists():
            raise StoreError(f"there is no store of results {self.path} yet; a command with --keep begins it")
        place = f"file:{quote(str(self.path))}"
        try:
            return self._connected(f"{place}?mode={'rwc' if create else 'rw'}")
        except sqlite3.OperationalError:
            # In a folder without write access, a file can be read only if no process writes to it at the same time.
            if create or os.access(self.path.parent, os.W_OK):
                raise
            return self._connected(f"{place}?mode=ro&immutable=1")

    def _connected(self, place: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            place, uri=True, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self) -> None:
        connection = self._connection
        schema = self._schema()
        if schema == SCHEMA:
            # The journal mode is a property of the file; setting it again would request a lock.
            connection.execute("PRAGMA synchronous = FULL")
            return
        self._patiently("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        with self._writing():
            for statements in MIGRATIONS[self._schema() :]:  # another process may have migrated it first
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")

    def _schema(self) -> int:
        """The file's schema version; 0 if the file is empty."""
        schema = int(self._value("PRAGMA user_version"))
        if self._value("PRAGMA application_id") != APPLICATION_ID and (
            schema or self._value("SELECT count(*) FROM sqlite_master")
        ):
            raise StoreError(f"{self.path} is a database of another program; move it away, or set {DIRECTORY_VARIABLE}")
        if schema > SCHEMA:
            raise StoreError(
                f"the store of results {self.path} is of a newer version (schema {schema}, and this one knows "
                f"{SCHEMA}); update the sandbox, or set {DIRECTORY_VARIABLE} to another folder"
            )
        return schema

    def _value(self, statement: str) -> Any:
        return self._connection.execute(statement).fetchone()[0]

    def _patiently(self, statement: str) -> None:
        """Execute a statement for which SQLite does not wait if the file is busy, such as a change of journal mode."""
        until = time.monotonic() + self._busy_seconds
        while True:
            try:
                self._connection.execute(statement).fetchall()
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
                time.sleep(_RETRY_SECONDS)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors_in_one_line():
            yield self._connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction. It is IMMEDIATE: a writer waits before it reads, so it cannot fail for a conflict later."""
        with self._lock, self._errors_in_one_line():
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors_in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise  # an error of the harness, not of the file
        except sqlite3.Error as error:
            raise StoreError(_in_one_line(self.path, str(error), self._busy_seconds)) from error
        except OSError as error:
            raise StoreError(
                f"cannot open the store of results {self.path}: {error.strerror}; set {DIRECTORY_VARIABLE} to a folder "
                "that you can write to"
            ) from error


def open_store(*, create: bool = True) -> Store:
    """Open the store at `place.store_path()`. Raises `StoreError` or `UsageError`."""
    return Store(store_path(), create=create)


def _in_one_line(path: Path, error: str, busy_seconds: float) -> str:
    """SQLite's message in one line, with a remedy."""
    store, kept = f"the store of results {path}", "the results stored before are unchanged"
    if "locked" in error or "busy" in error:
        return f"{store} has been busy for {busy_seconds:g} s; end the process that writes to it, then run again"
    if "readonly" in error or "read-only" in error:
        return f"cannot write {store}: it is read-only; make it writable (chmod u+w), or set {DIRECTORY_VARIABLE}"
    if "unable to open" in error:
        return f"cannot open {store}; check that you may write there, or set {DIRECTORY_VARIABLE} to another folder"
    if "full" in error or "I/O" in error:
        return f"cannot write {store}: {error}; {kept}: make room there, or set {DIRECTORY_VARIABLE} to another folder"
    return (
        f"{store} is damaged ({error}); move it away together with {path.name}-wal, and the next --keep creates a new "
        "one; the command .recover of SQLite's shell recovers what can be read from the old one"
    )


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None.

    A lone surrogate, which SQLite rejects, is stored as its escape sequence.
    """
    if isinstance(value, str):
        return encodable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
