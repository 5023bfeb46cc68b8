"""The disk cache: what it gives back is what was stored under that very key, or nothing."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from harness.support import cache as cache_module
from harness.support.cache import DIRECTORY_VARIABLE, LIMIT_VARIABLE, Cache, default_cache
from harness.support.errors import UsageError

KEY = ("source", b"\0options")
PAYLOAD = bytes(range(256)) * 20


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", 1_000_000)


def entry_file(cache: Cache) -> Path:
    assert cache.directory is not None
    (path,) = cache.directory.iterdir()
    return path


def test_gives_back_what_was_stored(cache: Cache) -> None:
    assert cache.get("ptx", KEY) is None
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.get("ptx", KEY) == PAYLOAD
    assert Cache(cache.directory, 1_000_000).get("ptx", KEY) == PAYLOAD


def test_reading_takes_no_more_memory_than_the_entry_whatever_the_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 2**32)
    cache.put("ptx", KEY, PAYLOAD)
    tracemalloc.start()
    try:
        assert cache.get("ptx", KEY) == PAYLOAD
        assert tracemalloc.get_traced_memory()[1] < 10 * len(PAYLOAD)
    finally:
        tracemalloc.stop()


def test_an_empty_payload_is_not_an_absent_one(cache: Cache) -> None:
    cache.put("ptx", KEY, b"")
    assert cache.get("ptx", KEY) == b""


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("other", KEY),
        ("ptx", ("source",)),
        ("ptx", ("sourc", b"e\0options")),
        ("ptx", ("source", b"\0option", b"s")),
        ("ptx", ("", "source", b"\0options")),
    ],
)
def test_another_key_is_another_entry(cache: Cache, kind: str, key: tuple[str | bytes, ...]) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.get(kind, key) is None


def test_builds_once(cache: Cache) -> None:
    built: list[int] = []

    def build() -> bytes:
        built.append(1)
        return PAYLOAD

    assert [cache.cached("ptx", KEY, build) for _ in range(3)] == [PAYLOAD] * 3
    assert len(built) == 1


def test_directory_and_entries_are_private(cache: Cache) -> None:
    previous = os.umask(0)
    try:
        cache.put("ptx", KEY, PAYLOAD)
    finally:
        os.umask(previous)
    assert cache.directory is not None
    assert stat.S_IMODE(cache.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_file(cache).stat().st_mode) == 0o600


@pytest.mark.parametrize("position", ["magic", "lengths", "digest", "key", "payload", "last byte"])
def test_a_corrupted_entry_is_rebuilt(cache: Cache, position: str) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    path = entry_file(cache)
    content = bytearray(path.read_bytes())
    magic = len(cache_module._MAGIC)
    at = {
        "magic": 3,
        "lengths": magic + 1,
        "digest": magic + 20,
        "key": content.index(b"source"),
        "payload": content.index(PAYLOAD),
        "last byte": -1,
    }[position]
    content[at] ^= 0x10
    path.write_bytes(content)
    assert cache.get("ptx", KEY) is None
    assert cache.cached("ptx", KEY, lambda: b"rebuilt") == b"rebuilt"
    assert cache.get("ptx", KEY) == b"rebuilt"


def test_a_truncated_or_lengthened_entry_is_absent_at_every_length(cache: Cache) -> None:
    cache.put("ptx", KEY, b"payload")
    path = entry_file(cache)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert cache.get("ptx", KEY) is None, length
    path.write_bytes(content + b"\0")
    assert cache.get("ptx", KEY) is None
    path.write_bytes(content)
    assert cache.get("ptx", KEY) == b"payload"


def test_another_keys_file_is_not_taken(cache: Cache) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    mine = entry_file(cache)
    cache.put("ptx", ("another",), b"foreign")
    assert cache.directory is not None
    (foreign,) = set(cache.directory.iterdir()) - {mine}
    mine.write_bytes(foreign.read_bytes())
    assert cache.get("ptx", KEY) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_can_write_is_not_trusted(cache: Cache, mode: int) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    entry_file(cache).chmod(mode)
    assert cache.get("ptx", KEY) is None
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.get("ptx", KEY) == PAYLOAD


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_directory_that_others_can_write_is_not_used(cache: Cache, mode: int) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.directory is not None
    cache.directory.chmod(mode)
    assert cache.get("ptx", KEY) is None
    cache.put("ptx", ("another",), PAYLOAD)
    assert len(list(cache.directory.iterdir())) == 1
    assert str(cache.directory) in str(cache.why_unusable())


def test_what_belongs_to_somebody_else_is_not_trusted(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    monkeypatch.setattr(os, "geteuid", lambda: entry_file(cache).stat().st_uid + 1)
    assert cache.get("ptx", KEY) is None


def test_links_are_not_followed(cache: Cache, tmp_path: Path) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    path = entry_file(cache)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert cache.get("ptx", KEY) is None
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.get("ptx", KEY) == PAYLOAD
    assert not path.is_symlink()

    link = tmp_path / "link"
    assert cache.directory is not None
    link.symlink_to(cache.directory)
    assert Cache(link).get("ptx", KEY) is None
    assert Cache(link).why_unusable() is not None


def test_a_pipe_in_the_entrys_place_does_not_block(cache: Cache) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    path = entry_file(cache)
    path.unlink()
    os.mkfifo(path, 0o600)
    found: list[bytes | None] = []
    reader = threading.Thread(target=lambda: found.append(cache.get("ptx", KEY)), daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert found == [None]


def test_a_folder_in_the_entrys_place_is_absent(cache: Cache) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    path = entry_file(cache)
    path.unlink()
    path.mkdir(mode=0o700)
    assert cache.get("ptx", KEY) is None
    assert cache.cached("ptx", KEY, lambda: PAYLOAD) == PAYLOAD


def test_a_directory_that_cannot_be_made_means_no_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.get("ptx", KEY) is None
    assert cache.cached("ptx", KEY, lambda: b"built") == b"built"
    assert "set ATTENTION_SANDBOX_CACHE_DIR" in str(cache.why_unusable())


def test_a_full_disk_leaves_nothing_behind(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", no_space)
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.directory is not None
    assert list(cache.directory.iterdir()) == []


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 10_500)
    for i in range(5):
        cache.put("ptx", (str(i),), bytes(2000))
    assert cache.directory is not None
    for i, path in enumerate(sorted(cache.directory.iterdir(), key=lambda p: p.stat().st_mtime_ns)):
        os.utime(path, (1000 + i, 1000 + i))
    assert cache.get("ptx", ("0",)) is not None  # used: now the youngest
    cache.put("ptx", ("5",), bytes(2000))
    kept = [i for i in range(6) if cache.get("ptx", (str(i),)) is not None]
    assert kept == [0, 3, 4, 5]
    assert sum(path.stat().st_size for path in cache.directory.iterdir()) <= 10_500


def test_the_folder_is_within_its_limit_and_seldom_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache", 1_000_000)
    scandir, looks = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda folder: looks.append(folder) or scandir(folder))
    sizes = []
    for i in range(1500):
        cache.put("ptx", (str(i),), bytes(1000))
        if i % 50 == 0:
            with scandir(str(cache.directory)) as files:
                sizes.append(sum(file.stat().st_size for file in files))
    assert 890_000 < max(sizes) <= 1_000_000
    assert len(looks) < 500


def test_what_is_larger_than_the_limit_is_not_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 1000)
    cache.put("ptx", ("small",), bytes(100))
    cache.put("ptx", KEY, bytes(1000))
    assert cache.get("ptx", KEY) is None
    assert cache.get("ptx", ("small",)) == bytes(100)


def test_abandoned_files_are_cleared_away(cache: Cache) -> None:
    cache.put("ptx", KEY, PAYLOAD)
    assert cache.directory is not None
    old, young = cache.directory / ".writing-1-old", cache.directory / ".writing-2-young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.put("ptx", ("another",), bytes(100_000))  # a sixteenth of the room: the folder is looked through again
    assert not old.exists()
    assert young.exists()


def test_the_environment_chooses_directory_and_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (DIRECTORY_VARIABLE, LIMIT_VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache().directory == tmp_path / ".cache" / "attention-sandbox"
    assert default_cache().limit_bytes == 512 * 1024 * 1024
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache().directory == tmp_path / ".cache" / "attention-sandbox"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache().directory == tmp_path / "xdg" / "attention-sandbox"
    default_cache().put("ptx", KEY, PAYLOAD)
    assert default_cache().get("ptx", KEY) == PAYLOAD
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path / "chosen"))
    assert default_cache().directory == tmp_path / "chosen"
    monkeypatch.setenv(LIMIT_VARIABLE, "0")
    default_cache().put("ptx", KEY, PAYLOAD)
    assert default_cache().get("ptx", KEY) is None
    assert not (tmp_path / "chosen").exists()


@pytest.mark.parametrize("text", ["many", "-1", "1.5"])
def test_a_limit_that_is_no_number_is_a_usage_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(UsageError, match=r"ATTENTION_SANDBOX_CACHE_BYTES.*whole number"):
        default_cache()


HAMMER = """
import random, sys, time
from pathlib import Path
from harness.support.cache import Cache

cache = Cache(Path(sys.argv[1]), 60_000)  # room for about half of the entries: they evict each other all the time
random.seed(int(sys.argv[2]))
hits, end = 0, time.monotonic() + 1.5
while time.monotonic() < end:
    number = random.randrange(12)
    payload = str(number).encode() * (5000 if number < 10 else 2500)
    found = cache.get("ptx", (str(number),))
    assert found in (None, payload), number
    hits += found is not None
    if random.random() < 0.5:
        cache.put("ptx", (str(number),), payload)
print(hits)
"""


def test_processes_that_share_it_do_no_harm(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HAMMER, str(tmp_path / "cache")]
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen([*command, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=root)
        for seed in range(3)
    ]
    for process in running:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert int(out) > 10
    files = list((tmp_path / "cache").iterdir())
    assert files
    assert not [path for path in files if path.name.startswith(".writing")]
    # Each process stays within the limit at its last write; the others may have added one entry each since.
    assert sum(path.stat().st_size for path in files) <= 60_000 + 3 * 6000
