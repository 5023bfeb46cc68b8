"""Examples that prove nothing are counted, do not fail a right kernel, and are no pass where there are no others."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from emulators import emulator
from no_kernel import NoKernel

from harness.execution.judging.verdict import PASS, UNDECIDED
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.campaign import CampaignSettings, run_campaign
from harness.studies.fuzz.examining import chosen_examiners
from harness.studies.fuzz.examining.examination import examine
from harness.studies.fuzz.finding import Answer
from harness.studies.fuzz.report import campaigns_report, render_replay
from harness.studies.fuzz.result import CampaignResult

WEAK = Answer(error_over_budget=0.1, undecided="zeros")
STRONG = Answer(error_over_budget=0.1)


def searched(monkeypatch: pytest.MonkeyPatch, answer: Callable[[int], Answer]) -> CampaignResult:
    """A campaign of ten examples, of which the nth has this answer."""

    def ask(self: NoKernel, case: Case) -> Answer:
        type(self).asked.append(case)
        return answer(len(type(self).asked))

    workers = type("Workers", (NoKernel,), {"asked": [], "ask": ask})
    monkeypatch.setattr(chosen_examiners, "Workers", workers)
    variant = discover().registry.get("fa2-cupy")
    return run_campaign("fa2-cupy", lambda: variant, how=CampaignSettings(seed=1, examples=10))


def test_some_are_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched(monkeypatch, lambda number: STRONG if number == 4 else WEAK)
    assert (result.verdict, result.undecided) == (PASS, 9)
    text = campaigns_report([result], "none").render("table")
    assert "fa2-cupy: 9 of 10 examples prove nothing" in text
    assert json.loads(campaigns_report([result], "none").render("json"))["campaigns"][0]["undecided"] == 9


def test_a_campaign_that_decides_nothing_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    result = searched(monkeypatch, lambda number: WEAK)
    assert result.verdict == UNDECIDED and result.reason is not None and "zeros would pass, too" in result.reason
    refused = searched(monkeypatch, lambda number: Answer(refusal="odd") if number % 2 else WEAK)
    assert refused.verdict == UNDECIDED and (refused.undecided, refused.refused) == (5, 5)


@pytest.mark.compiles
def test_a_correct_kernel_is_undecided_by_one_case() -> None:
    variant = discover().registry.get("fa2-cupy")
    problem = Problem(heads=1, q_len=8, kv_len=70, head_dim=16, dtype="float16")
    weak = examine(Case(problem, "falling", 1), variant, emulator())
    assert weak.finding is None and weak.undecided == "attention over half of the keys"
    assert "attention over half of the keys would pass, too" in render_replay(
        "fa2-cupy", Case(problem, "falling", 1), weak, "table"
    )
    assert examine(Case(problem, "normal", 1), variant, emulator()).undecided is None
