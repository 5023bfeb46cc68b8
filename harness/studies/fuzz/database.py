"""Where the failures of past campaigns are kept, to be tried first by the next."""

from __future__ import annotations

from pathlib import Path

from harness.model.case import Case
from harness.support.cache import default_cache
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

FILE = "cases.jsonl"
MOST_KEPT = 20
"""The oldest go."""


class PastFailures:
    """The smallest cases that failed, the last one first, as a file of a variant's folder; nothing without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE

    def cases(self) -> list[Case]:
        """All that can still be read: an operation may have changed meanwhile."""
        try:
            lines = [] if self._path is None else self._path.read_text().splitlines()
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                found.append(Case.from_json(line))
            except UsageError:
                continue
        return found

    def keep(self, case: Case) -> None:
        """Put it before the others."""
        self._write([case, *(other for other in self.cases() if other != case)][:MOST_KEPT])

    def forget(self, case: Case) -> None:
        """It fails no more."""
        self._write([other for other in self.cases() if other != case])

    def _write(self, cases: list[Case]) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_files({self._path: "".join(f"{case.to_json()}\n" for case in cases).encode()})


def failure_folder(variant: str) -> Path | None:
    """A folder for the failures of one variant in the user's cache; None where there is no cache."""
    cache = default_cache()
    if cache.directory is None or cache.why_unusable() is not None:
        return None
    # A variant's name may hold anything but blanks, commas and wildcards, a slash too.
    return cache.directory / "failures" / "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in variant)
