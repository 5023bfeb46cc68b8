"""Examiners of a campaign that run no kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.studies.fuzz.drawing.builds import builds_for
from harness.studies.fuzz.drawing.search import Search
from harness.studies.fuzz.finding import Answer


class NoKernel:
    """Workers that take everything, run nothing, and remember what they were asked."""

    asked: list[Case]
    refusals: Callable[[Case], str | None]
    most_ahead, ahead_of_search = 64, 2

    def __init__(
        self, load: Callable[[], object], machine: object, seconds: float, builds: Sequence[Build], number: int
    ) -> None:
        variant = load()
        self.builds, self.takes, self.fails_in = builds_for(variant, builds), variant.takes, variant.fails_in

    def __enter__(self) -> NoKernel:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def start(self) -> None:
        pass

    def expect(self, case: Case) -> None:
        pass

    def forget(self) -> None:
        pass

    def end(self) -> None:
        pass

    def ahead(self, usual: int) -> int:
        return min(usual, type(self).most_ahead)

    def ahead_of(self, search: Search) -> int:
        return type(self).ahead_of_search * search.examples

    def expect_search(self, search: Search) -> None:
        pass

    def searched(self, search: Search) -> None:
        pass

    def ask(self, case: Case) -> Answer:
        type(self).asked.append(case)
        return Answer(refusal=type(self).refusals(case), error_over_budget=0.1)
