"""The sequence of a campaign's examples: systematically chosen cases, interleaved with searches.

It is a function of the campaign's settings and of the variant's declared support, and does not depend on answers. So
the examples, and the first failure, are the same for any number of workers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.model.cases.axes import Axes
from harness.model.cases.build import Build
from harness.model.cases.case import Case
from harness.model.cases.property import SANITIZER
from harness.model.operation import Operation
from harness.studies.fuzz.drawing.chosen_cases import SANITIZED_EACH, ChosenCases, Row
from harness.studies.fuzz.drawing.covering import Covering
from harness.studies.fuzz.drawing.examples_per_build import rounds
from harness.studies.fuzz.drawing.search import Search, is_declared
from harness.studies.fuzz.examining.examiners import Examiners

FAR_AFTER = 24
"""Number of chosen examples that precede those whose offsets exceed 32 bits."""


@dataclass(frozen=True)
class Chosen:
    """One systematically chosen example."""

    row: Row
    """The combined values of the axes."""
    case: Case


@dataclass(frozen=True, kw_only=True)
class ExampleSequence:
    """The parameters that determine a campaign's examples."""

    operation: Operation
    builds: tuple[Build, ...]
    examples: int | None
    """Number of examples; None for an infinite sequence."""
    seed: int
    most_tiles: int | None
    checks: tuple[str, ...]
    takes: tuple[str, ...]
    fails_in: tuple[str, ...]
    axes: Axes | None
    covering: Covering | None
    """The covering array; None if the operation has no axes, so that Hypothesis draws all examples."""
    sanitized_each: int = SANITIZED_EACH
    """In a build for the sanitizer, one of this many chosen cases is sanitized."""

    def entries(self, tried: int) -> Iterator[Chosen | Search]:
        """Yield the entries in order; `tried` examples were run before the first."""
        drawn: set[Case] = set()
        far = deque[Case]()
        if self.axes is not None and self.sanitized_each > 1:
            far.extend(self.axes.far_cases(self.builds, self.seed))
        began, number, begun_with = tried, 0, set[Build]()

        def is_left_out(case: Case) -> bool:
            return case in drawn or is_declared(case, self.fails_in, self.operation)

        for part in rounds(self.builds, self.examples, self.builds[0].places_of_features(self.takes)):
            here = 0
            if self.axes is not None and self.covering is not None:
                chosen = ChosenCases(self.axes, self.covering, part, self.seed, self.sanitized_each)
                while began + here < part.chosen_until:
                    if far and began + here >= FAR_AFTER:
                        row, case = Row(), far.popleft()
                    elif (found := chosen.draw(is_left_out)) is not None:
                        row, case = found
                    else:
                        break
                    drawn.add(case)
                    here += 1
                    yield Chosen(row, case)
            if began + here < part.until:
                number += 1
                yield self.search(part.builds, part.until - began - here, number, part.builds[0] in begun_with)
                begun_with.add(part.builds[0])
            began = max(began, part.until)

    def search(self, builds: tuple[Build, ...], examples: int, number: int, plainest_is_known: bool = False) -> Search:
        """A search with this many examples."""
        # Where cases for the sanitizer are chosen systematically, searches do not use it: it compiles again for each
        # build.
        checks = tuple(c for c in self.checks if c != SANITIZER or self.covering is None)
        name, seed, tiles = self.operation.name, self.seed, self.most_tiles
        return Search(name, builds, examples, seed, number, tiles, checks, self.takes, self.fails_in, plainest_is_known)


class Upcoming:
    """Looks ahead in a sequence and announces its next entries to the examiners."""

    def __init__(
        self, entries: Iterator[Chosen | Search], examiners: Examiners, is_known: Callable[[Chosen | Search], bool]
    ) -> None:
        """Entries for which `is_known` is true need no examiner."""
        self._entries, self._examiners, self._is_known = entries, examiners, is_known
        self._drawn: deque[Chosen | Search] = deque()

    def next(self) -> Chosen | Search | None:
        """The next entry; None at the end."""
        # Announce two per entry taken: the whole lookahead at once would delay the first entry.
        self._draw(max(1, self._examiners.ahead(len(self._drawn) + 2)))
        entry = self._drawn.popleft() if self._drawn else None
        if isinstance(entry, Search):
            self._draw(self._examiners.ahead_of(entry))
        return entry

    def _draw(self, number: int) -> None:
        while len(self._drawn) < number and (entry := next(self._entries, None)) is not None:
            if self._is_known(entry):
                pass
            elif isinstance(entry, Chosen):
                self._examiners.expect(entry.case)
            else:
                self._examiners.expect_search(entry)
            self._drawn.append(entry)
