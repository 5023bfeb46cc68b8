"""The disk cache for compilation results: byte payloads by kind and key, private to the user and limited in size.

An entry is a file: magic, lengths, SHA-256 over key and payload, the full key, the payload. All of it is verified when
loaded. An entry that is truncated, corrupted, has another key, belongs to another user, or is writable by others counts
as absent, and the caller rebuilds it. A directory that cannot be used disables the cache and is never an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.support.errors import UsageError
from harness.support.numbers import shown, whole_number

DIRECTORY_VARIABLE = "ATTENTION_SANDBOX_CACHE_DIR"
LIMIT_VARIABLE = "ATTENTION_SANDBOX_CACHE_BYTES"
DEFAULT_LIMIT_BYTES = 512 * 1024 * 1024

Key = tuple[str | bytes, ...]
"""Everything that the payload depends on: sources, options, versions."""

_MAGIC = b"attention-sandbox cache 1\n"
_HEADER = struct.Struct("<QQ32s")  # key bytes, payload bytes, SHA-256 of key and payload
_TEMPORARY = ".writing-"
_ABANDONED_SECONDS = 3600.0
_EVICT_TO = 0.9  # below the limit, so that not every subsequent write has to evict
_LOOK_AGAIN_AFTER = 1 / 16
"""Fraction of a directory's free room that this process writes before it examines the directory again. Up to 16 writing
processes thus stay within the limit."""


class Cache:
    """A directory of verified entries. Any number of processes may share it."""

    def __init__(self, directory: Path | None, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        """If `directory` is None or `limit_bytes` is 0, the cache is disabled: it is always empty."""
        self.directory = directory
        self.limit_bytes = limit_bytes

    def get(self, kind: str, key: Key) -> bytes | None:
        """The payload; None if there is no trustworthy entry. Marks the entry as recently used."""
        full_key = _encode(kind, key)
        with self._open_directory(create=False) as directory:
            if directory is None:
                return None
            try:
                # O_NONBLOCK: opening a named pipe in place of the entry must not block.
                entry = os.open(
                    _file_name(kind, full_key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory
                )
            except OSError:
                return None
            status = os.fstat(entry)
            if not stat.S_ISREG(status.st_mode) or not _is_private(status):
                os.close(entry)  # such as a folder, which cannot be read as a file
                return None
            with os.fdopen(entry, "rb") as file:
                try:
                    # Not just the limit: Python allocates as many bytes as it is asked to read.
                    payload = _decode(file.read(min(self.limit_bytes, status.st_size) + 1), full_key)
                except OSError:
                    return None
                if payload is not None:
                    with contextlib.suppress(OSError):
                        os.utime(entry)
                return payload

    def put(self, kind: str, key: Key, payload: bytes) -> None:
        """Store the payload atomically. Does nothing if the directory cannot be used."""
        full_key = _encode(kind, key)
        digest = hashlib.sha256(full_key + payload).digest()
        content = _MAGIC + _HEADER.pack(len(full_key), len(payload), digest) + full_key + payload
        if len(content) > self.limit_bytes:
            return
        with self._open_directory(create=True) as directory:
            if directory is None:
                return
            temporary = f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"
            try:
                entry = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
                with os.fdopen(entry, "wb") as file:
                    file.write(content)
                os.rename(temporary, _file_name(kind, full_key), src_dir_fd=directory, dst_dir_fd=directory)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                return
            _make_room(directory, self.limit_bytes, len(content))

    def cached(self, kind: str, key: Key, build: Callable[[], bytes]) -> bytes:
        """The cached payload, or the result of `build`, which is then stored."""
        payload = self.get(kind, key)
        if payload is None:
            payload = build()
            self.put(kind, key, payload)
        return payload

    def why_unusable(self) -> str | None:
        """One line on why nothing can be stored, with a remedy; None if the cache works."""
        if self.directory is None:
            return f"no home directory; set {DIRECTORY_VARIABLE}"
        if self.limit_bytes <= 0:
            return f"switched off by {LIMIT_VARIABLE}"
        with self._open_directory(create=True) as directory:
            if directory is None:
                return f"{self.directory} is not a directory that only you can write to; set {DIRECTORY_VARIABLE}"
            if not os.access(self.directory, os.W_OK):
                return f"{self.directory} is not writable; set {DIRECTORY_VARIABLE}"
        return None

    @contextlib.contextmanager
    def _open_directory(self, *, create: bool) -> Iterator[int | None]:
        # All access is relative to one descriptor, which is checked after it was opened: nobody can swap the directory
        # between the check and the use.
        descriptor = None
        if self.directory is not None and self.limit_bytes > 0:
            with contextlib.suppress(OSError):
                if create:
                    self.directory.parent.mkdir(parents=True, exist_ok=True)
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(self.directory, 0o700)
                descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            yield descriptor if descriptor is not None and _is_private(os.fstat(descriptor)) else None
        finally:
            if descriptor is not None:
                os.close(descriptor)


def default_cache() -> Cache:
    """The user's cache: $ATTENTION_SANDBOX_CACHE_DIR, else attention-sandbox in $XDG_CACHE_HOME or ~/.cache.

    $ATTENTION_SANDBOX_CACHE_BYTES limits its size (default 512 MiB, 0 disables it). Raises `UsageError` if that is not
    a whole number.
    """
    text = os.environ.get(LIMIT_VARIABLE, "")
    try:
        limit_bytes = whole_number(text) if text else DEFAULT_LIMIT_BYTES
    except ValueError:
        limit_bytes = -1
    if limit_bytes < 0:
        raise UsageError(f"{LIMIT_VARIABLE} is {shown(text)}; it has to be a whole number of bytes, 0 for no cache")
    return Cache(user_directory(DIRECTORY_VARIABLE, "XDG_CACHE_HOME", ".cache"), limit_bytes)


def user_directory(own_variable: str, xdg_variable: str, below_home: str) -> Path | None:
    """Return the directory that `own_variable` names, else `attention-sandbox` in that of the XDG specification.

    That is the directory in `xdg_variable`, by default `below_home`. None if there is no home directory.
    """
    chosen = os.environ.get(own_variable)
    if chosen:
        return Path(os.path.abspath(chosen))
    base = os.environ.get(xdg_variable, "")
    if not os.path.isabs(base):  # unset, or relative, which the XDG specification says to ignore
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, below_home)
    return Path(base, "attention-sandbox")


def _encode(kind: str, key: Key) -> bytes:
    parts = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in (kind, *key)]
    # Lengths precede the parts: ("ab", "c") and ("a", "bc") are different keys.
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def _file_name(kind: str, full_key: bytes) -> str:
    return f"{kind}-{hashlib.sha256(full_key).hexdigest()}"


def _decode(content: bytes, full_key: bytes) -> bytes | None:
    start = len(_MAGIC) + _HEADER.size
    if len(content) < start or not content.startswith(_MAGIC):
        return None
    key_bytes, payload_bytes, digest = _HEADER.unpack_from(content, len(_MAGIC))
    body = content[start:]
    if len(body) != key_bytes + payload_bytes or body[:key_bytes] != full_key:
        return None
    if hashlib.sha256(body).digest() != digest:
        return None
    return body[key_bytes:]


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


_room: dict[tuple[int, int, int], float] = {}
"""Bytes that this process may still write, by the directory's device and inode and the limit."""


def _make_room(directory: int, limit_bytes: int, written: int) -> None:
    """Evict entries if necessary. Examining the thousands of entries takes longer than writing one."""
    status = os.fstat(directory)
    place = status.st_dev, status.st_ino, limit_bytes
    room = _room.get(place, 0.0) - written
    if room < 0:
        room = (limit_bytes - _evict(directory, limit_bytes)) * _LOOK_AGAIN_AFTER
    _room[place] = room


def _evict(directory: int, limit_bytes: int) -> int:
    """Delete entries if they take more than `limit_bytes`. Returns how many bytes the remaining ones take."""
    # Least recently used first. Another process may delete the same files concurrently; that is harmless.
    entries = []
    now = time.time()
    try:
        with os.scandir(directory) as scan:
            for item in scan:
                with contextlib.suppress(OSError):
                    status = item.stat(follow_symlinks=False)
                    if not stat.S_ISREG(status.st_mode):
                        continue
                    if not item.name.startswith(_TEMPORARY):
                        entries.append((status.st_mtime_ns, status.st_size, item.name))
                    elif now - status.st_mtime > _ABANDONED_SECONDS:
                        os.unlink(item.name, dir_fd=directory)
    except OSError:
        return limit_bytes
    total = sum(size for _, size, _ in entries)
    if total <= limit_bytes:
        return total
    for _, size, name in sorted(entries):
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
        total -= size
        if total <= limit_bytes * _EVICT_TO:
            break
    return total
