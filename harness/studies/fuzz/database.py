"""Where the failures of past campaigns are kept, to be tried first by the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from hypothesis.internal.conjecture.pareto import ParetoFront

from harness.support.cache import default_cache


@contextlib.contextmanager
def no_pareto_front() -> Iterator[None]:
    """With a database Hypothesis compares each example with all that `target` found to be far along, to keep those too.

    That is a file or more per example and no failure, and to find them takes as long as to run the examples. No setting
    of Hypothesis turns it off but to have no database.
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
