"""Resumes an interrupted command: completed work is stored until the whole command is done.

The work is stored in the user's store, under a key of everything that a result depends on: the command's options, the
files of the sandbox and of plugins, the versions of compilers and generators, and the device. A change in any of these
starts over. A command that is done in a few seconds writes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness.execution.cluster.fingerprint import fingerprint
from harness.execution.results.place import store_path
from harness.execution.results.plain_data import from_plain, to_plain
from harness.execution.results.store import Store, unit_key
from harness.model.discovery import Discovery
from harness.options.command import add_fields_of
from harness.options.request import StudyRequest
from harness.options.standard_streams import complain
from harness.options.workers import plugin_files
from harness.support.errors import StoreError, UsageError

WRITE_SECONDS = 2.0
"""Minimum time between two writes, each of which waits for the disk."""
WITHOUT_EFFECT = frozenset({"afresh", "kept", "plot", "report", "roofline", "workers"})
"""Fields of a request that do not change the result of a unit of work."""


def add_afresh(parser: argparse.ArgumentParser) -> None:
    """Add --afresh."""
    add_fields_of(StudyRequest, parser.add_argument_group("resuming"), "afresh")


class UnfinishedWork:
    """Completed work of one command. If it cannot be stored, a warning is printed once and the command continues."""

    def __init__(self, key: Callable[[], tuple[Any, ...]], path: Path | None, afresh: bool = False) -> None:
        """Open the stored work, if there is any.

        `key` returns everything that the results depend on; it is called at most once. `path` is the store's, or None
        if nothing is stored. With `afresh`, stored work is deleted.
        """
        self._key, self._path = functools.cache(key), path
        self._store: Store | None = None
        self._chunks = 0
        self._done: dict[str, Any] = {}
        self._pending: list[list[Any]] = []
        self._written_at = time.monotonic()
        if path is not None and path.exists():
            self._guarded(self._read)
            if afresh:
                self.drop()

    def known(self, *name: str | int | float | bool) -> Any | None:
        """Return the result of a unit of work, as it was passed to `finish`; None if the unit is not completed."""
        plain = self._done.get(json.dumps(name))
        try:
            return from_plain(plain)
        except (TypeError, ValueError, KeyError, UsageError):
            return None  # the unit is run again

    def finish(self, value: Any, *name: str | int | float | bool) -> None:
        """Record the result of a unit of work.

        It is written within seconds. Results that are not plain data are not stored.
        """
        if self._path is not None:
            with contextlib.suppress(TypeError):
                self._pending.append([json.dumps(name), to_plain(value)])
            if time.monotonic() > self._written_at + WRITE_SECONDS:
                self.write()

    def write(self) -> None:
        """Write all recorded results."""
        pending, self._pending = self._pending, []
        if pending and self._guarded(lambda store: store.finish(self._chunk(self._chunks), pending)):
            self._chunks += 1
        self._written_at = time.monotonic()

    def drop(self) -> None:
        """Delete all stored work, so that the same command starts from the beginning."""
        self._done.clear()
        self._pending.clear()
        if self._chunks:
            self._guarded(lambda store: store.forget([self._chunk(number) for number in range(self._chunks)]))
            self._chunks = 0

    def close(self) -> None:
        """Close the store."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _chunk(self, number: int) -> str:
        return unit_key("unfinished", number, *self._key())

    def _read(self, store: Store) -> None:
        while (chunk := store.finished(self._chunk(self._chunks))) is not None:
            self._done.update(chunk)
            self._chunks += 1

    def _guarded(self, use: Callable[[Store], object]) -> bool:
        """Use the store. Returns False, after one warning, if it cannot be used; then nothing more is stored."""
        if self._path is None:
            return False
        try:
            if self._store is None:
                self._store = Store(self._path)
            use(self._store)
            return True
        except StoreError as error:
            complain(f"warning: progress cannot be stored, so an interrupted command starts again: {error}")
            self.close()
            self._path = None
            return False


@contextlib.contextmanager
def unfinished_work(request: StudyRequest, found: Discovery, *more: str) -> Iterator[UnfinishedWork]:
    """Context with the work of this request. It is deleted if the block ends normally.

    `more` adds to the key, such as the device. If the block raises an exception, including `KeyboardInterrupt`,
    completed work is stored.
    """
    work = UnfinishedWork(lambda: _key(request, found, more), _path(request), request.afresh)
    try:
        yield work
        work.drop()
    except BaseException:
        work.write()
        raise
    finally:
        work.close()


def _path(request: StudyRequest) -> Path | None:
    """Return the path of the store; None if work cannot be stored or storing it has no use."""
    if request.selection.own_variants or request.kept.is_watched:
        return None  # objects have no textual form; --watch runs the command again anyway
    try:
        return store_path()
    except UsageError:
        return None


def _key(request: StudyRequest, found: Discovery, more: tuple[str, ...]) -> tuple[Any, ...]:
    with_effect = dataclasses.replace(request, settings=dataclasses.replace(request.settings, threads=None))
    names = [each.name for each in dataclasses.fields(request) if each.name not in WITHOUT_EFFECT]
    words = {name: repr(getattr(with_effect, name)) for name in names}
    files = [(path, hashlib.sha256(Path(path).read_bytes()).hexdigest()) for path in plugin_files(found)]
    return type(request).__name__, words, files, fingerprint().digest, more


def tell_going_on(done: int, what: str) -> None:
    """Report that a command resumes, if any work is done. `what` names the units, such as `of 120 points`."""
    if done:
        complain(f"resuming an interrupted command: {done:,} {what} are done (--afresh starts again)")
