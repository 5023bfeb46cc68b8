"""The battery says on which inputs a variant fails."""

from __future__ import annotations

import math

import pytest

from harness.execution.judging.accuracy import Element
from harness.model.cases.case import Case, Edit
from harness.model.discovery import PLUGIN, Origin
from harness.model.plan import Plan
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.studies.fuzz import conformance
from harness.studies.fuzz.finding import WRONG_ANSWER, Finding
from harness.studies.fuzz.result import CampaignResult, Failure

pytestmark = pytest.mark.compiles(False)


def test_a_failure_names_the_edited_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=4), edits=(Edit("K", (0, 0, 0, 2), math.nan),))
    finding = Finding(WRONG_ANSWER, "wrong", Element("O", (0,), ("batch",), 0.0, math.nan, math.nan), 1, 1)
    failure = Failure(case, finding, (1, 1), case, finding, case, finding, 1, 0, True, False)
    found = CampaignResult("it", "fail", "wrong", failure, 1, 0, (), 1.0, 0.0, 0, None, None)
    monkeypatch.setattr(conformance, "run_campaign", lambda *arguments, **how: found)
    subject = conformance.Subject(Variant(name="it", plan=lambda p: Plan(())), Origin(PLUGIN, "it.py"))
    on = subject.wrong_answer.splitlines()[1]
    assert on.startswith("on: ") and on.endswith("inputs normal, seed 0, K[0, 0, 0, 2] = nan")
