"""The log of an interrupted campaign, which the next one with the same settings reuses."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Protocol

from harness.model.cases.case import Case
from harness.studies.fuzz.finding import Answer
from harness.support.errors import UsageError


class Work(Protocol):
    """The storage of a log, such as `options.resume.UnfinishedWork`."""

    def known(self, *name: str | int | float | bool) -> object | None:
        """The value stored under that name; None if there is none."""

    def finish(self, value: object, *name: str | int | float | bool) -> None:
        """Store a value under that name."""


class _Nothing:
    def known(self, *name: str | int | float | bool) -> object | None:
        return None

    def finish(self, value: object, *name: str | int | float | bool) -> None:
        pass


class CampaignLog:
    """The answers without findings of one variant's campaign. A finding ends the search, and is found again.

    Without `work` the log stays empty.
    """

    def __init__(self, variant: str = "", work: Work | None = None) -> None:
        self._variant, self._work = variant, work or _Nothing()
        self.answers: dict[Case, Answer] = {}
        """Answers to cases that were counted."""
        self.searches: dict[int, list[tuple[Case, Answer]]] = {}
        """Cases and answers of complete searches, by search number."""
        self.seconds = 0.0
        """Duration so far."""
        tried = self._work.known(variant, "tried")
        self.tried = tried if isinstance(tried, int) else None
        """Number of past failures tried first; None if the campaign had not begun."""
        self._number = 0
        if self.tried is not None:
            self._read()
        self._began = time.monotonic() - self.seconds

    def begin(self, tried: int) -> None:
        """Record that past failures were tried."""
        self._work.finish(tried, self._variant, "tried")

    def counted(self, case: Case, answer: Answer) -> None:
        """Record one example."""
        if case not in self.answers:
            seconds = time.monotonic() - self._began
            value = (case.to_json(), answer.refusal, answer.error_over_budget, seconds, answer.undecided)
            self._work.finish(value, self._variant, "case", self._number)
            self._number += 1

    def searched(self, number: int, cases: Iterable[Case]) -> None:
        """Record a completed search with its cases, all of which were counted."""
        if number not in self.searches:
            self._work.finish([case.to_json() for case in cases], self._variant, "search", number)

    def _read(self) -> None:
        while isinstance(kept := self._work.known(self._variant, "case", self._number), tuple):
            text, refusal, ratio, self.seconds, undecided = kept
            self.answers[_case(text)] = Answer(refusal=refusal, error_over_budget=ratio, undecided=undecided)
            self._number += 1
        number = 1
        while isinstance(met := self._work.known(self._variant, "search", number), list):
            cases = [_case(text) for text in met]
            if not all(case in self.answers for case in cases):
                return
            self.searches[number] = [(case, self.answers[case]) for case in cases]
            number += 1


def _case(text: object) -> Case:
    if not isinstance(text, str):
        raise UsageError(f"{text!r} is not a case")
    return Case.from_json(text)
