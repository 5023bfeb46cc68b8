"""Stores the failures of past campaigns, which the next campaign tries first."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from harness.model.cases.case import Case
from harness.model.discovery import PLUGIN, Origin
from harness.support.cache import default_cache
from harness.support.errors import UsageError
from harness.support.file_replacement import replace_files

FILE = "cases.jsonl"
MOST_KEPT = 20
"""Maximum number of stored failures; the oldest are dropped."""


class PastFailures:
    """The smallest failing cases, newest first, in a file of the variant's folder; empty without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = None if folder is None else folder / FILE

    def cases(self) -> list[Case]:
        """All cases that are still readable, since an operation may have changed."""
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
        """Insert the case at the front."""
        self._write([case, *(other for other in self.cases() if other != case)][:MOST_KEPT])

    def forget(self, case: Case) -> None:
        """Remove a case that no longer fails."""
        self._write([other for other in self.cases() if other != case])

    def _write(self, cases: list[Case]) -> None:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_files({self._path: "".join(f"{case.to_json()}\n" for case in cases).encode()})


def failure_folder(variant: str, origin: Origin) -> Path | None:
    """The folder for failures of one variant in the user's cache; None if there is no cache.

    Variants of the same name in different plugin files are different variants.
    """
    cache = default_cache()
    if cache.directory is None or cache.why_unusable() is not None:
        return None
    # A variant's name may contain anything but blanks, commas and wildcards, even a slash.
    name = "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in variant)
    if origin.kind == PLUGIN:
        name += "@" + hashlib.sha256(os.fsencode(Path(origin.name).resolve())).hexdigest()[:16]
    return cache.directory / "failures" / name
