"""The protocol for examining a campaign's cases: implemented by local processes and by workers of a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.studies.fuzz.drawing.search import Search
from harness.studies.fuzz.finding import Answer

Searched = Sequence[tuple[Case, Answer]]
"""The distinct cases of a search with their answers, in order, up to the first failure."""


class Examiners(Protocol):
    """A context manager for use by one thread. Every method raises `SandboxError` if no worker can be started."""

    def __enter__(self) -> Examiners: ...

    def __exit__(self, *exception: object) -> None: ...

    @property
    def builds(self) -> tuple[Build, ...]:
        """The builds of kernels, with the variant's own tiles."""

    @property
    def takes(self) -> tuple[str, ...]:
        """The problem features that the variant supports."""

    @property
    def fails_in(self) -> tuple[str, ...]:
        """Regimes in which the variant declares that it fails."""

    def start(self) -> None:
        """Start workers. The variant's properties are known afterwards."""

    def ahead(self, usual: int) -> int:
        """How many entries of the sequence to announce ahead; `usual` is enough for a few processes."""

    def ahead_of(self, search: Search) -> int:
        """How many entries to announce ahead while that search runs."""

    def expect(self, case: Case) -> None:
        """Announce that `case` will be passed to `ask`."""

    def expect_search(self, search: Search) -> None:
        """Announce that `search` will be passed to `searched`."""

    def ask(self, case: Case) -> Answer:
        """The answer to `case`. A process that dies or hangs is an answer as well."""

    def searched(self, search: Search) -> Searched | None:
        """The result of an announced search; None if the caller has to run the search."""

    def candidates(self, number: int) -> int:
        """How many of `number` simpler cases to announce at once."""

    def cancel_all(self) -> None:
        """Cancel all announcements."""

    def end(self) -> None:
        """End the workers, so that the next case runs in a fresh process."""
