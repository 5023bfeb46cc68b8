"""One case, start to end: what the harness itself fails at is never the variant's finding, nor hides one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import fuzzed_variants
import pytest

from harness.emulator.executor import EmulatorExecutor
from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.model.operation import operation_named
from harness.model.plan import Buffer, Plan
from harness.operations.attention.problem import Problem
from harness.studies.fuzz.examining.examination import examine
from harness.studies.fuzz.finding import WRONG_ANSWER, Answer

CASE = Case(Problem(heads=1, q_len=2, kv_len=9, head_dim=4))
LOSES_A_KEY = ("int keys = causal ?", "N_k -= N_k % 8 == 1;\n    int keys = causal ?")


def answer_of(load: object, case: Case = CASE) -> Answer:
    return examine(case, load, EmulatorExecutor(RunSettings(threads=1)))


def break_harness(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    def broken(*arguments: object) -> None:
        raise AttributeError("'PagedProblem' object has no attribute 'dropout'")

    monkeypatch.setattr(operation_named("attention"), method, broken)


@pytest.mark.parametrize("method", ["hints", "known_mistakes"])
def test_a_description_that_fails_leaves_the_finding(monkeypatch: pytest.MonkeyPatch, method: str):
    whole = answer_of(fuzzed_variants.edited(*LOSES_A_KEY))
    assert "equals the answer without the last key" in whole.finding.pattern and whole.fault is None
    break_harness(monkeypatch, method)
    answer = answer_of(fuzzed_variants.edited(*LOSES_A_KEY))
    assert answer.finding is not None and answer.finding.kind == WRONG_ANSWER
    assert answer.finding.reason == whole.finding.reason and answer.finding.pattern is None
    assert "describing what is wrong: AttributeError: 'PagedProblem' object has no" in answer.fault


@pytest.mark.parametrize("method", ["answer", "tolerance"])
def test_an_oracle_or_a_budget_that_fails_says_nothing_about_the_variant(monkeypatch: pytest.MonkeyPatch, method: str):
    break_harness(monkeypatch, method)
    for check in (None, "determinism"):
        answer = answer_of(fuzzed_variants.right(), dataclasses.replace(CASE, check=check))
        assert answer.finding is None and "AttributeError" in answer.fault


def test_memory_that_no_machine_has_is_the_plans_mistake():
    right = fuzzed_variants.right()

    def plan(problem: Problem) -> Plan:
        plan = right.plan(problem)
        return dataclasses.replace(plan, buffers=(*plan.buffers, Buffer("S", (1 << 46,), "float32")))

    finding = answer_of(dataclasses.replace(right, plan=plan)).finding
    assert (
        finding is not None and "not enough memory for buffer S, which has 281,474,976,710,656 bytes" in finding.reason
    )


def test_an_overrun_array_is_the_finding_before_any_wrong_answer():
    path = Path(__file__).parents[3] / "plugins" / "hidden_mistakes.py"
    overrun = discover([path]).registry.get("one-score-too-many")
    case = Case(Problem(heads=1, q_len=8, kv_len=8, head_dim=64))
    finding = examine(
        case, overrun, EmulatorExecutor(RunSettings(threads=1)), EmulatorSanitizer(shuffled_runs=0)
    ).finding
    assert finding is not None and finding.kind == "outside its array"
    assert "of shared memory scores, which has 256 bytes" in finding.reason


def test_the_place_of_a_fault_is_a_line_of_the_harness(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness.operations.attention.oracle.answer_of", lambda block: 1 / 0)
    answer = answer_of(fuzzed_variants.right())
    assert answer.finding is None
    assert answer.fault.startswith("ZeroDivisionError: division by zero (harness/operations/attention/oracle.py:")
