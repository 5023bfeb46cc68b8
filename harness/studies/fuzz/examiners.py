"""Whoever examines a campaign's cases: processes of this machine, or workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.model.build import Build
from harness.model.case import Case
from harness.studies.fuzz.finding import Answer
from harness.studies.fuzz.search import Search

Searched = Sequence[tuple[Case, Answer]]
"""The different cases of a search in order, up to the first that fails."""


class Examiners(Protocol):
    """A context manager; one thread may use it. Every method raises `SandboxError` where none can be had."""

    def __enter__(self) -> Examiners: ...

    def __exit__(self, *exception: object) -> None: ...

    @property
    def builds(self) -> tuple[Build, ...]:
        """What kernels may have compiled in, with the variant's own tiles."""

    @property
    def takes(self) -> tuple[str, ...]:
        """The features of problems that the variant takes."""

    @property
    def fails_in(self) -> tuple[str, ...]:
        """Regimes in which the variant declares that it fails."""

    def start(self) -> None:
        """Some that are ready; what the variant says of itself is known from here."""

    def ahead(self, usual: int) -> int:
        """How many entries of the sequence they want to know of, where `usual` would do for a few processes."""

    def ahead_of(self, search: Search) -> int:
        """The same while that search is on."""

    def expect(self, case: Case) -> None:
        """`case` is going to be asked about."""

    def expect_search(self, search: Search) -> None:
        """`search` is going to be asked about."""

    def ask(self, case: Case) -> Answer:
        """What comes of `case`. A process that dies or hangs is the answer too."""

    def searched(self, search: Search) -> Searched | None:
        """What came of an expected search; None where whoever asks has to search."""

    def candidates(self, number: int) -> int:
        """How many simpler cases to expect at once, of `number` that there are."""

    def forget(self) -> None:
        """Nothing is expected any more."""

    def end(self) -> None:
        """The next case meets a fresh process."""
