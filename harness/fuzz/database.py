"""Where the failures of past campaigns are kept, to be tried first by the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

from hypothesis.database import DirectoryBasedExampleDatabase, ExampleDatabase
from hypothesis.internal.conjecture.pareto import ParetoFront

from harness.cache import default_cache


class FailureDatabase(ExampleDatabase):
    """Hypothesis' own database in a folder, for failures alone.

    Hypothesis would also keep what `target` found to be far along, a file or more per example: that is many, and no
    failure.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._failures = DirectoryBasedExampleDatabase(folder)

    def save(self, key: bytes, value: bytes) -> None:
        """Keep an example under a key."""
        if not _is_of_target(key):
            self._failures.save(key, value)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """What is kept under a key."""
        return () if _is_of_target(key) else self._failures.fetch(key)

    def delete(self, key: bytes, value: bytes) -> None:
        """Keep it no longer."""
        if not _is_of_target(key):
            self._failures.delete(key, value)


def _is_of_target(key: bytes) -> bool:
    return key.endswith(b".pareto")


@contextlib.contextmanager
def no_pareto_front() -> Iterator[None]:
    """With a database Hypothesis compares each example with all that `target` found to be far along, to keep them.

    They would not be kept here (see above), and to find them takes as long as to run the examples. No setting of
    Hypothesis turns it off but to have no database.
    """
    with mock.patch.object(ParetoFront, "add", return_value=False):
        yield


def failure_folder(variant: str) -> Path | None:
    """A folder for the failures of one variant in the user's cache; None where there is no cache."""
    cache = default_cache()
    if cache.directory is None or cache.why_unusable() is not None:
        return None
    # A variant's name may hold anything but blanks, commas and wildcards, a slash too.
    return cache.directory / "failures" / "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in variant)
