"""Examples that several searches of a campaign met count once, and searches that run together make up for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from no_kernel import NoKernel

from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.studies.fuzz.campaign import REPLACED_AT_A_TIME, run_campaign
from harness.studies.fuzz.drawing.search import Search
from harness.studies.fuzz.drawing.sequence import Chosen, ExampleSequence
from harness.studies.fuzz.examining import chosen_examiners
from harness.studies.fuzz.finding import Answer, Finding
from harness.studies.fuzz.settings import CampaignSettings

pytestmark = pytest.mark.compiles(False)

EXAMPLES, SEARCHED = 200, 100


class Recording(NoKernel):
    """Remembers in which order searches were expected and cases asked about."""

    told: list[Case | Search]
    fails_at: int | None = None

    def expect_search(self, search: Search) -> None:
        self.told.append(search)

    def ask(self, case: Case) -> Answer:
        self.told.append(case)
        asked = sum(isinstance(entry, Case) for entry in self.told)
        return Answer(Finding("wrong answer", "by agreement") if asked == self.fails_at else None)


def told(monkeypatch: pytest.MonkeyPatch, *, fails_at: int | None = None) -> tuple[list[Case | Search], int]:
    """What the workers of a campaign were told whose two first searches meet the same, and how many examples it had."""

    def entries(self: ExampleSequence, tried: int) -> Iterator[Chosen | Search]:
        first = self.search(self.builds[:1], SEARCHED, 1)
        yield from (first, first)

    monkeypatch.setattr(ExampleSequence, "entries", entries)
    workers = type("Workers", (Recording,), {"told": [], "fails_at": fails_at})
    monkeypatch.setattr(chosen_examiners, "Workers", workers)
    variant = discover().registry.get("fa2-cupy")
    how = CampaignSettings(examples=EXAMPLES, seed=1, shrink_seconds=0.0)
    result = run_campaign("fa2-cupy", lambda: variant, how=how, operation=variant.operation)
    return workers.told, result.examples


def test_what_makes_up_for_them_is_expected_together(monkeypatch: pytest.MonkeyPatch):
    entries, examples = told(monkeypatch)
    assert examples == EXAMPLES == len({entry for entry in entries if isinstance(entry, Case)})
    made_up = entries[2 + SEARCHED :]
    together = -(-(EXAMPLES - SEARCHED) // REPLACED_AT_A_TIME)
    assert all(isinstance(entry, Search) for entry in made_up[:together])
    assert sum(entry.examples for entry in made_up[:together] if isinstance(entry, Search)) >= EXAMPLES - SEARCHED
    assert len({entry.number for entry in made_up if isinstance(entry, Search)}) >= together


def test_a_failure_there_ends_the_campaign(monkeypatch: pytest.MonkeyPatch):
    _, examples = told(monkeypatch, fails_at=SEARCHED + 40)
    assert examples == SEARCHED + 40
