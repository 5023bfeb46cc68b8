"""The tables of the store, and the migrations from each earlier schema to the current one."""

from __future__ import annotations

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
