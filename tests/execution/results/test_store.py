"""The store: rows and units of work that survive whatever happens to the processes that write them, and to the file."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness.execution.results import store
from harness.execution.results.kept_row import COLUMNS, KeptRow
from harness.execution.results.store import Store, unit_key
from harness.support.errors import StoreError, UsageError

ROOT = Path(__file__).resolve().parents[3]
ROW = KeptRow(
    study="compare", operation="attention", variant="fa2-cupy", verdict="pass", read_bytes=2**40, write_bytes=3
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "results.sqlite"


def damaged(path: Path, content: bytes) -> None:
    """The store with this content and nothing in its log."""
    for beside in ("-wal", "-shm"):
        Path(f"{path}{beside}").unlink(missing_ok=True)
    path.write_bytes(content)


def filled(path: Path, rows: int) -> bytes:
    """The whole file of a store with so many rows."""
    with Store(path) as kept:
        kept.keep(dataclasses.replace(ROW, reason=f"{number:0>500}") for number in range(rows))
    assert not Path(f"{path}-wal").exists()
    return path.read_bytes()


# Rows.


def test_what_is_kept_comes_back_with_its_number_and_time(path: Path) -> None:
    with Store(path) as kept:
        assert kept.keep([ROW, dataclasses.replace(ROW, variant="fa1-cupy", error_over_budget=0.25)]) == 2
    with Store(path) as kept:
        first, second = kept.rows()
    assert first == dataclasses.replace(ROW, id=1, kept_at=first.kept_at)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.kept_at or "")
    assert (second.id, second.variant, second.error_over_budget, second.kept_at) == (2, "fa1-cupy", 0.25, first.kept_at)
    assert first.total_bytes == 2**40 + 3


@pytest.mark.parametrize("value", [math.nan, math.inf, None])
def test_what_is_not_known_or_not_finite_is_null_and_never_0(path: Path, value: float | None) -> None:
    with Store(path) as kept:
        kept.keep([dataclasses.replace(ROW, error_over_budget=value)])
        (row,) = kept.rows()
    assert row.error_over_budget is None and row.time_ms is None
    (nulls,) = sqlite3.connect(path).execute("SELECT count(*) FROM kept WHERE error_over_budget IS NULL").fetchone()
    assert nulls == 1


def test_rows_by_condition_are_oldest_first(path: Path) -> None:
    with Store(path) as kept:
        for name in ("b", "a", "b"):
            kept.keep([dataclasses.replace(ROW, variant=name)])
        assert [row.id for row in kept.rows("variant = ?", ("b",))] == [1, 3]


def test_the_table_has_the_fields_of_a_row_and_no_others(path: Path) -> None:
    Store(path).close()
    told = sqlite3.connect(path).execute("PRAGMA table_info(kept)").fetchall()
    assert tuple(column[1] for column in told) == COLUMNS
    kinds = {"INTEGER": int, "REAL": float, "TEXT": str}
    wanted = {field.name: str(field.type) for field in dataclasses.fields(KeptRow)}
    assert all(kinds[column[2]].__name__ in wanted[column[1]] for column in told)
    not_null = {column[1] for column in told if column[3]}
    assert not_null == {name for name, kind in wanted.items() if "None" not in kind} | {"kept_at"}


def test_a_row_that_cannot_be_kept_keeps_none_of_its_command(path: Path) -> None:
    with Store(path) as kept:
        with pytest.raises(sqlite3.IntegrityError, match="NOT NULL"):
            kept.keep([ROW, dataclasses.replace(ROW, variant=None)])  # type: ignore[arg-type]
        assert kept.rows() == []


# Units of work.


def test_a_finished_unit_is_known_to_whoever_opens_the_store_next(path: Path) -> None:
    key = unit_key("sweep", {"q_len": 128, "variant": "fa2-cupy"})
    with Store(path) as kept:
        assert kept.finished(key) is None
        kept.finish(key, {"read_bytes": 12, "reason": None})
        kept.finish(key, {"read_bytes": 13, "reason": None})
    with Store(path) as kept:
        assert kept.finished(key) == {"read_bytes": 13, "reason": None}
        kept.forget([key, "unknown"])
        assert kept.finished(key) is None
        with pytest.raises(ValueError, match="not finished"):
            kept.finish(key, None)


def test_a_key_depends_on_every_part_and_not_on_the_order_of_a_dict() -> None:
    assert unit_key("a", {"b": 1, "c": 2}) == unit_key("a", {"c": 2, "b": 1})
    assert len({unit_key("a", "b"), unit_key("ab"), unit_key("b", "a"), unit_key(["a", "b"]), unit_key("a", 1)}) == 5
    with pytest.raises(TypeError):
        unit_key(object())


def test_thousands_of_units_are_asked_for_in_a_moment(path: Path) -> None:
    with Store(path) as kept:
        kept.finish("one", 1)
        began = time.process_time()
        assert sum(kept.finished(str(number)) is None for number in range(5000)) == 5000
    assert time.process_time() - began < 1.0


# Several at once.

WRITER = """
import dataclasses, sys
from pathlib import Path
from harness.execution.results.kept_row import KeptRow
from harness.execution.results.store import Store
path, name, commands = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
row = KeptRow(study="compare", operation="attention", variant=name, verdict="pass")
for number in range(commands):
    with Store(path) as kept:
        kept.keep([dataclasses.replace(row, seed=number)] * 3)
        kept.finish(f"{name} {number}", number)
    print(number, flush=True)
"""


def writer(path: Path, name: str, commands: int) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", WRITER, str(path), name, str(commands)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_begin_and_write_one_store_at_once_lose_nothing(path: Path) -> None:
    writers = [writer(path, name, 40) for name in "abcd"]
    told = [each.communicate(timeout=60) for each in writers]
    assert [(each.returncode, errors) for each, (_, errors) in zip(writers, told)] == [(0, "")] * 4
    with Store(path) as kept:
        rows = kept.rows()
        assert all(kept.finished(f"{name} {number}") == number for name in "abcd" for number in range(40))
    for name in "abcd":
        assert [row.seed for row in rows if row.variant == name] == [n for n in range(40) for _ in range(3)]


def test_a_store_is_begun_while_another_process_has_the_empty_file(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("PRAGMA journal_mode")
    other.execute("BEGIN IMMEDIATE")
    later = threading.Timer(0.3, lambda: other.execute("ROLLBACK"))
    later.start()
    with Store(path) as kept:
        kept.keep([ROW])
        assert later.finished.is_set()
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_threads_share_an_open_store(path: Path) -> None:
    with Store(path) as kept:
        threads = [
            threading.Thread(target=lambda n=number: [kept.finish(f"{n} {k}", k) for k in range(20)])  # type: ignore[misc]
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(kept.finished(f"{n} {k}") == k for n in range(4) for k in range(20))


def test_who_waits_too_long_for_another_writer_is_told(path: Path) -> None:
    Store(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with Store(path, busy_seconds=0.05) as kept, pytest.raises(StoreError, match=r"busy for 0\.05 s; end the process"):
        kept.keep([ROW])
    other.execute("ROLLBACK")


def test_a_process_that_is_killed_while_it_writes_leaves_whole_commands(path: Path) -> None:
    for _ in range(5):
        victim = writer(path, "victim", 10**6)
        assert victim.stdout is not None
        victim.stdout.readline()
        time.sleep(random.uniform(0.0, 0.05))
        victim.send_signal(signal.SIGKILL)
        written = victim.communicate(timeout=60)[0].split()
        with Store(path) as kept:
            rows = kept.rows("id > coalesce((SELECT max(id) FROM kept WHERE variant = 'here'), 0)")
            # What it said was committed; at most one command more was, and none of them in part.
            seeds = [row.seed for row in rows]
            done = int(written[-1]) if written else 0
            assert len(seeds) % 3 == 0 and len(seeds) // 3 - 1 in (done, done + 1)
            assert seeds == [number for number in range(len(seeds) // 3) for _ in range(3)]
            assert kept.finished(f"victim {done}") == done
            kept.keep([dataclasses.replace(ROW, variant="here")])
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


# Files that are no store, or no longer.


def test_there_is_nothing_to_read_before_the_first_row(path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no store of results .* yet; a command with --keep begins it"):
        Store(path, create=False)
    assert not path.parent.exists()


def test_a_file_that_is_no_database_is_told_and_left_alone(path: Path) -> None:
    content = random.Random(0).randbytes(9000)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged \(file is not a database\); move it away .*creates a new one"):
        Store(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("part", [0.25, 0.5, 0.95])
def test_a_truncated_store_is_told(path: Path, part: float) -> None:
    content = filled(path, 300)
    damaged(path, content[: int(part * len(content))])
    with pytest.raises(StoreError, match=r"is damaged \(.*\); move it away"), Store(path) as kept:
        kept.rows()
    with pytest.raises(StoreError, match=r"is damaged \(.*\); move it away"), Store(path) as kept:
        kept.keep([ROW])


@pytest.mark.parametrize("seed", range(5))
def test_random_bytes_in_the_middle_of_a_store_are_told(path: Path, seed: int) -> None:
    content = bytearray(filled(path, 300))
    draw = random.Random(seed)
    page = 4096 * draw.randrange(2, len(content) // 4096)
    content[page : page + 4096] = draw.randbytes(4096)
    damaged(path, bytes(content))
    with pytest.raises(StoreError, match=r"is damaged \(.*\); move it away"), Store(path) as kept:
        kept.rows()


def test_a_folder_in_its_place_is_told(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="is a folder; move it away, or set ATTENTION_SANDBOX_RESULTS_DIR"):
        Store(path)


def test_a_file_where_its_folder_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot open the store of results .*; set ATTENTION_SANDBOX_RESULTS_DIR"):
        Store(tmp_path / "file" / "results.sqlite")


def test_a_store_that_may_only_be_read_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 1)
    connected = Store._connected

    def read_only(self: Store, place: str) -> sqlite3.Connection:
        # Root may write anywhere, so the file system's refusal is asked for by name.
        return connected(self, place.replace("mode=rwc", "mode=ro"))

    monkeypatch.setattr(Store, "_connected", read_only)
    with Store(path) as kept:
        assert len(kept.rows()) == 1
        with pytest.raises(StoreError, match=r"it is read-only; make it writable \(chmod u\+w\), or set ATTENTION"):
            kept.keep([ROW])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_in_a_folder_that_may_only_be_read_can_be_read(path: Path) -> None:
    filled(path, 1)
    path.parent.chmod(0o500)
    try:
        with Store(path, create=False) as kept:
            assert len(kept.rows()) == 1
        with (
            pytest.raises(StoreError, match=r"(cannot (open|write)).* set ATTENTION_SANDBOX_RESULTS_DIR"),
            Store(path) as kept,
        ):
            kept.keep([ROW])
    finally:
        path.parent.chmod(0o700)


def test_a_store_of_a_newer_version_is_told_and_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    later = (*store.MIGRATIONS, ("ALTER TABLE kept ADD COLUMN colour TEXT",))
    with monkeypatch.context() as newer:
        newer.setattr(store, "MIGRATIONS", later)
        newer.setattr(store, "SCHEMA", len(later))
        filled(path, 1)
    with pytest.raises(
        StoreError, match=r"is of a newer version \(schema 3, and this one knows 2\); update the sandbox"
    ):
        Store(path)


def test_an_older_store_is_brought_up_to_date_with_its_rows(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 2)
    later = (*store.MIGRATIONS, ("ALTER TABLE kept ADD COLUMN colour TEXT", "UPDATE kept SET colour = 'red'"))
    monkeypatch.setattr(store, "MIGRATIONS", later)
    monkeypatch.setattr(store, "SCHEMA", len(later))
    with Store(path) as kept:
        assert len(kept.rows("colour = 'red'")) == 2
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (3,)


def test_a_migration_that_fails_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, 2)
    with monkeypatch.context() as newer:
        newer.setattr(store, "MIGRATIONS", (*store.MIGRATIONS, ("ALTER TABLE kept ADD COLUMN colour TEXT", "nonsense")))
        newer.setattr(store, "SCHEMA", store.SCHEMA + 1)
        with pytest.raises(StoreError):
            Store(path)
    with Store(path) as kept:
        assert len(kept.rows()) == 2


def test_the_database_of_another_program_is_told_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE bookmarks (place TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="is a database of another program; move it away"):
        Store(path)
    assert path.read_bytes() == before


def test_a_full_disk_is_told_and_loses_nothing(path: Path) -> None:
    with Store(path) as kept:
        kept.keep([ROW])
        (pages,) = kept._connection.execute("PRAGMA page_count").fetchone()
        kept._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"disk is full; the results stored before are unchanged: make room"):
            kept.keep([dataclasses.replace(ROW, reason="x" * 100_000)])
    with Store(path) as kept:
        assert len(kept.rows()) == 1
        kept.keep([ROW])


def test_a_write_that_the_system_refuses_is_told_and_loses_nothing(path: Path) -> None:
    filled(path, 1)
    size = path.stat().st_size

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, size + 8192))

    script = WRITER.replace('verdict="pass"', 'verdict="pass", reason="x" * 200_000')
    words = [sys.executable, "-c", script, str(path), "refused", "1"]
    done = subprocess.run(words, cwd=ROOT, preexec_fn=limited, capture_output=True, text=True)
    assert done.returncode != 0 and "the results stored before are unchanged: make room" in done.stderr
    with Store(path) as kept:
        assert [row.variant for row in kept.rows()] == ["fa2-cupy"]
        kept.keep([ROW])


def test_all_of_these_end_a_command_with_status_2() -> None:
    assert issubclass(StoreError, UsageError)
