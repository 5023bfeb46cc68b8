"""Campaigns against kernels whose mistakes are known."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

import fuzzed_variants
import pytest
from lanes import exhaustive_unless

from harness.model.cases.case import Case
from harness.model.operation import operation_named
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention.problem import Problem
from harness.options.machine import WORKER, Machine
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.examining.workers import Workers
from harness.studies.fuzz.finding import Answer
from harness.studies.fuzz.log import CampaignLog
from harness.studies.fuzz.replaying import replay
from harness.studies.fuzz.report import campaigns_report
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.errors import UsageError
from harness.text.page.campaigns import campaigns_section

BUILDS = (AttentionBuild("float32", 8, 16, 8), AttentionBuild("float32", 5, 16, 8))


def campaign(load: object, **how: object) -> CampaignResult:
    settings = {"examples": 60, "seed": 1, "builds": BUILDS, **how}
    return run_campaign("it", load, how=CampaignSettings(**settings))


def edited(old: str, new: str, **how: object) -> CampaignResult:
    return campaign(functools.partial(fuzzed_variants.edited, old, new), **how)


def test_a_right_kernel_passes_and_all_examples_are_run():
    told: list[tuple[int, float]] = []
    how = CampaignSettings(examples=30, seed=1, builds=BUILDS)
    result = run_campaign("right", fuzzed_variants.right, how=how, progress=lambda n, part, met: told.append((n, part)))
    assert (result.verdict, result.reason, result.failure) == ("pass", None, None)
    assert (result.examples, result.refused) == (30, 0)
    assert told[-1] == (30, 1.0) and [n for n, _ in told] == list(range(1, 31))
    assert result.hardest is not None and 0 < result.hardest_ratio <= 1
    assert replay(result.hardest, fuzzed_variants.right).error_over_budget == result.hardest_ratio


@pytest.mark.parametrize(
    ("old", "new", "smallest"),
    [
        ("i + N_k - N_q + 1", "min(i + 1, N_k)", {"mask": "causal", "q_len": 1, "kv_len": 2}),
        *exhaustive_unless(
            lambda edit: False,
            [
                ("j < keys", "j < keys - (keys > 8)", {"kv_len": 9, "q_len": 1, "heads": 1}),
                ("c < d; ++c) o[c] = l", "c < d - (d % 8 > 0); ++c) o[c] = l", {"head_dim": 5}),
                (
                    "head / group",
                    "head % (gridDim.y / group)",
                    {"batch": 2, "heads": 2, "kv_heads": 1, "q_len": 1, "kv_len": 1},
                ),
                ("l = alpha * l + p", "l = l + p", {"kv_len": 2, "q_len": 1}),
            ],
        ),
    ],
)
def test_a_wrong_kernel_is_found_and_shrunk_to_what_its_mistake_needs(old: str, new: str, smallest: dict[str, object]):
    result = edited(old, new)
    assert result.verdict == "fail"
    failure = result.failure
    assert failure is not None and failure.finding.kind == "wrong answer"
    assert {name: failure.case.problem.to_fields()[name] for name in smallest} == smallest
    assert failure.repeatable and not failure.remembered
    element = failure.finding.first
    assert element is not None and not abs(element.got - element.answer) <= element.allowed
    assert failure.finding.wrong is not None and 0 < failure.finding.wrong <= failure.finding.elements


def test_a_wrong_lse_is_told_from_a_wrong_answer():
    result = edited("m + logf(l)", "(m + logf(l)) * 1.442695f")
    assert result.failure is not None
    assert result.failure.finding.kind == "wrong lse"
    assert "logarithm to base 2" in result.failure.larger_finding.pattern


def test_a_fault_is_found_with_its_place():
    result = edited("if (i >= N_q) return;", "if (i > N_q) return;")
    assert result.failure is not None
    assert result.failure.finding.kind == "out of bounds"
    assert "one_thread_per_row.py" in result.failure.finding.reason or "line" in result.failure.finding.reason


@pytest.mark.exhaustive
def test_an_endless_loop_is_found():
    load = functools.partial(fuzzed_variants.edited, "m = m_new;", "m = m_new; if (N_k > 8) --j;")
    how = CampaignSettings(examples=60, seed=1, builds=BUILDS)
    result = run_campaign("endless", load, Machine(replace(WORKER, step_limit=100_000)), how)
    assert result.failure is not None
    assert result.failure.case.problem.kv_len == 9
    assert result.failure.finding.kind == "step limit"


@pytest.mark.exhaustive
def test_shrinking_survives_the_death_of_processes():
    load = functools.partial(fuzzed_variants.long_keys_do, "segfault")
    result = campaign(load, builds=(AttentionBuild("float32", 8, 64, 40),), shrink_seconds=600.0)
    assert result.failure is not None
    assert result.failure.finding.kind == "crash"
    problem = result.failure.case.problem
    assert (problem.kv_len, problem.q_len, problem.heads, problem.batch) == (41, 1, 1, 1)


def test_a_property_that_does_not_hold_is_found_and_can_be_left_out():
    # Off by less than its budget, and only in company: nothing but the comparison with a batch of one shows it.
    old = "lse[(long long)head * N_q + i] = m + logf(l);"
    new = "lse[(long long)head * N_q + i] = (m + logf(l)) * (head > 0 ? 1.0000001f : 1.0f);"
    found = edited(old, new, checks=("batch-invariance",))
    assert found.failure is not None
    assert (found.failure.finding.kind, found.failure.case.check) == ("batch-invariance", "batch-invariance")
    assert found.failure.case.problem.batch == 2
    assert edited(old, new, checks=()).verdict == "pass"


def test_refusals_are_counted():
    result = campaign(functools.partial(fuzzed_variants.refuses, "tails"))
    assert result.verdict == "pass"
    assert 0 < result.refused < result.examples == 60
    assert result.refusals == (("tails are out of reach", result.refused),)


def test_a_variant_that_refuses_all_does_not_pass():
    result = campaign(functools.partial(fuzzed_variants.refuses, "all"))
    assert result.verdict == "error"
    assert "supports none of the 60 problems" in result.reason and "it takes nothing" in result.reason


def test_a_variant_that_cannot_be_loaded_does_not_pass():
    result = campaign(fuzzed_variants.unloadable)
    assert (result.verdict, result.examples) == ("error", 0)
    assert "there is no such variant here" in result.reason


@pytest.mark.exhaustive
def test_the_same_seed_finds_the_same():
    first, second, other = (
        edited("j < keys", "j < keys - (keys > 8)", seed=seed, shrink_seconds=0.0) for seed in (5, 5, 6)
    )
    assert first.failure.first_case == second.failure.first_case != other.failure.first_case
    assert first.examples == second.examples


def test_a_past_failure_is_tried_first(tmp_path: Path):
    old, new = "i + N_k - N_q + 1", "min(i + 1, N_k)"
    first = edited(old, new, database=tmp_path)
    again = edited(old, new, database=tmp_path, seed=2)
    assert first.failure is not None and not first.failure.remembered
    assert again.failure is not None and again.failure.remembered
    assert again.failure.case == first.failure.case
    assert again.examples == 1
    assert (first.stored_failures, again.stored_failures) == (0, 1)
    assert ": a stored failure of an earlier campaign was tried first and failed again, so no new" in campaigns_report(
        [again], "emulator"
    ).render("table")


@pytest.mark.parametrize("examples", [None, 1000])
def test_a_search_that_its_time_ends_early_is_incomplete(examples: int | None):
    result = campaign(fuzzed_variants.right, examples=examples, seconds=0.3)
    assert (result.verdict, result.failure) == ("incomplete", None)
    assert 0 < result.examples < 200
    assert f"the time limit was reached after {result.examples:,} of {examples or 200:,} examples" in result.reason
    assert result.seconds < 60


def test_a_search_that_ends_before_its_time_passes():
    assert campaign(fuzzed_variants.right, examples=5, seconds=600.0).verdict == "pass"


def test_a_failure_at_a_tiles_end_is_described_by_lengths_and_equals():
    result = edited("int keys = causal ?", "N_k -= N_k % 8 == 1;\n    int keys = causal ?", shrink_seconds=200.0)
    assert result.failure is not None and result.failure.case.problem.kv_len == 1
    keys = result.failure.lengths[0]
    assert keys.text.startswith("kv_len 1, 9, 17, 25 (kv_len % 8 is 1); passes at 2 to 8, 10 to 16, 18")
    assert result.failure.larger_case.problem.kv_len == 25 and result.failure.larger_case.problem.heads > 1
    assert "equals the answer without the last key" in result.failure.larger_finding.pattern
    assert len(result.failure.first_finding.reason) > 0


OVERRUN = """
    __shared__ volatile float kept[8], after[8];
    if (threadIdx.x == 0) {
        kept[0] = 1.0f;
        after[0] = 0.0f;
        for (int n = 0; n < N_k && n < 9; ++n) kept[n] = 1.0f;
    }
    __syncthreads();
    if (after[0] + kept[0] > 1.0f) --N_k;
    if (i >= N_q) return;
"""


def test_the_sanitizer_looks_for_the_cause_of_a_wrong_answer():
    """Kernels that overrun an array by one: nothing but its neighbour's value is wrong."""
    result = edited("if (i >= N_q) return;", OVERRUN, checks=())
    assert result.failure is not None and result.failure.finding.kind == "wrong answer"
    assert result.failure.case.problem.kv_len == 9 and result.failure.lengths[0].passes[:8] == tuple(range(1, 9))
    sanitized = result.failure.sanitized
    assert sanitized is not None and sanitized.kind == "outside its array"
    assert (
        "byte offset 32 of shared memory kept, which has 32 bytes; that is at byte offset 0 of shared memory after"
        in sanitized.reason
    )
    text = campaigns_report([result], "here").render("table")
    assert f"sanitizer    outside its array: {sanitized.reason}" in text
    assert json.loads(campaigns_report([result], "here").render("json"))["campaigns"][0]["failure"]["sanitizer"]["kind"]
    assert "the sanitizer finds" in campaigns_section(campaigns_report([result], "here").document()["campaigns"]).html


def test_a_variant_that_declares_to_fail_everywhere_is_told_so():
    result = campaign(fuzzed_variants.fails_everywhere)
    assert (result.verdict, result.examples) == ("error", 0)
    assert "fails with inputs of every regime" in result.reason


def test_an_error_while_a_failure_is_described_keeps_the_verdict(monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> None:
        raise KeyError("no such build")

    for name in ("simpler", "enlarged", "probed_axes", "peculiarities"):
        monkeypatch.setattr(operation_named("attention"), name, broken)
    result = edited("int keys = causal ?", "N_k -= N_k % 8 == 1;\n    int keys = causal ?")
    assert result.verdict == "fail" and result.failure is not None
    assert result.failure.finding.kind == "wrong answer" and result.failure.repeatable
    assert len(result.faults) == 5
    assert all("KeyError: 'no such build'" in fault for fault in result.faults)


def test_an_error_of_the_harness_is_not_the_variants_failure(monkeypatch: pytest.MonkeyPatch):
    """Neither does it pass: nothing is known of that example."""
    fault = "ZeroDivisionError: division by zero (harness/somewhere.py:1)"
    ask, asked = Workers.ask, []

    def faulty(workers: Workers, case: Case) -> Answer:
        asked.append(case)
        return Answer(fault=fault) if len(asked) % 10 == 5 else ask(workers, case)

    monkeypatch.setattr(Workers, "ask", faulty)
    counted: list[Case] = []
    monkeypatch.setattr(CampaignLog, "counted", lambda log, case, answer: counted.append(case))
    result = campaign(fuzzed_variants.right, examples=12)
    assert (result.verdict, result.failure, result.examples) == ("error", None, 12)
    assert len(counted) == 11  # a campaign that goes on after it was cut off asks about the other one again
    assert "the harness itself failed in 1 of 12 examples" in result.reason and fault in result.reason
    assert result.faults == (fault,)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"examples": None}, "needs a limit"),
        ({"examples": 0}, "--examples is 0"),
        ({"seconds": -1.0}, "--seconds is -1"),
        ({"checks": ("colour",)}, "no property 'colour'"),
    ],
)
def test_settings_that_make_no_sense_are_told(how: dict[str, object], message: str):
    with pytest.raises(UsageError, match=message):
        campaign(fuzzed_variants.right, **how)


@pytest.mark.exhaustive
def test_a_replay_gives_the_same_finding():
    load = functools.partial(fuzzed_variants.edited, "j < keys", "j < keys - (keys > 8)")
    result = campaign(load)
    assert result.failure is not None
    assert replay(result.failure.case, load).finding == result.failure.finding
    passing = Case(Problem(heads=1, q_len=1, kv_len=8, head_dim=8))
    assert replay(passing, load).finding is None
    with pytest.raises(UsageError, match="no regime 'cold'"):
        replay(Case(passing.problem, "cold"), load)
    with pytest.raises(UsageError, match="no property 'colour'"):
        replay(Case(passing.problem, check="colour"), load)
