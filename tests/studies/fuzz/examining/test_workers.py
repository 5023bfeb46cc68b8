"""Cases that are begun early get their own answers, and a campaign comes to the same however many workers it has."""

from __future__ import annotations

import dataclasses
import functools
import math

import fuzzed_variants
import pytest
from lanes import exhaustive_unless

from harness.execution.run_settings import RunSettings
from harness.model.cases.case import Case
from harness.operations.attention.cases.build import BUILDS, AttentionBuild
from harness.operations.attention.problem import Problem
from harness.studies.fuzz import campaign
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.examining import chosen_examiners
from harness.studies.fuzz.examining.isolation import kernel_of
from harness.studies.fuzz.examining.workers import Workers
from harness.studies.fuzz.finding import CRASH, TIMEOUT, Answer
from harness.studies.fuzz.settings import CampaignSettings


def case(keys: int) -> Case:
    return Case(Problem(heads=1, q_len=2, kv_len=keys, head_dim=4))


def answers_to(workers: Workers, cases: list[Case]) -> list[Answer]:
    for each in cases:
        workers.expect(each)
    return [workers.ask(each) for each in cases]


LOSSES = [("exit", CRASH, 1), ("exit", CRASH, 2), ("sleep", TIMEOUT, 1), ("sleep", TIMEOUT, 2)]


@pytest.mark.parametrize(("what", "kind", "number"), exhaustive_unless(lambda way: way[::2] == ("exit", 2), LOSSES))
def test_a_process_that_dies_or_hangs_costs_the_case_that_it_was_at(
    what: str, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness.studies.fuzz.examining.isolation.COMPILE_SECONDS", 20.0)
    monkeypatch.setattr("harness.studies.fuzz.examining.isolation.PATIENCE", 1.0)  # who sleeps uses no processor
    with Workers(fuzzed_variants.right, fuzzed_variants.LosesItsProcess(what=what), 3.0, BUILDS, number) as workers:
        workers.start()
        keys = [3, 41, 5, 6, 42, 7]
        found = answers_to(workers, [case(n) for n in keys])
    assert [answer.finding and answer.finding.kind for answer in found] == [kind if n > 40 else None for n in keys]


def test_answers_are_those_of_their_cases_in_whatever_order_they_come():
    cases = [dataclasses.replace(case(n), seed=n) for n in (33, 1, 2, 40, 3, 4, 39)]
    with Workers(fuzzed_variants.right, campaign.EMULATOR, 60.0, BUILDS, 2) as workers:
        workers.start()
        for each in cases:
            workers.expect(each)
        other = workers.ask(case(17))  # nobody expected that one
        ratios = {each: workers.ask(each).error_over_budget for each in reversed(cases)}
        workers.expect(case(18))
        workers.cancel_all()
        again = {each: workers.ask(each).error_over_budget for each in cases}
    assert other.error_over_budget is not None and ratios == again
    assert len({ratio for ratio in ratios.values() if ratio}) > 3, "answers that could be mixed up unseen"


def test_what_is_forgotten_is_not_examined_any_more():
    with Workers(fuzzed_variants.right, campaign.EMULATOR, 60.0, BUILDS) as workers:
        workers.start()
        for n in range(1, 10):
            workers.expect(case(n))
        workers.cancel_all()
        handed = []
        monitored = workers._first.hand
        workers._first.hand = lambda each: (handed.append(each), monitored(each))  # type: ignore[method-assign]
        workers.expect(case(30))
        workers.ask(case(30))
        assert handed == [case(30)] and not workers._first.load


def test_a_worker_goes_on_with_the_kernels_that_it_has():
    cases = [Case(Problem(heads=1, q_len=2, kv_len=n, head_dim=head_dim)) for n in (3, 4) for head_dim in (4, 5, 6)]
    with Workers(fuzzed_variants.right, campaign.EMULATOR, 60.0, BUILDS, 2) as workers:
        for each in cases:
            workers._waiting[each] = kernel_of(each)
        one, other = workers._workers
        one.met, other.met = {kernel_of(cases[1])}, {kernel_of(cases[0])}
        assert workers._fitting(one) == cases[1] and workers._fitting(other) == cases[0]
        del workers._waiting[cases[1]], workers._waiting[cases[4]]
        assert workers._fitting(one) == cases[2], "what the other has not met, rather than what it has"
        del workers._waiting[cases[2]], workers._waiting[cases[5]]
        assert workers._fitting(one) == cases[0]


@pytest.mark.parametrize(
    ("new", "verdict"),
    exhaustive_unless(lambda way: way[1] == "fail", [("j < keys", "pass"), ("j < keys - (keys > 30)", "fail")]),
)
def test_a_campaign_comes_to_the_same_with_two_workers_as_with_one(
    new: str, verdict: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chosen_examiners, "FIRST_EXAMPLES", 0)  # every campaign is a long one
    monkeypatch.setattr(chosen_examiners, "usable_cores", lambda: 2)
    how = CampaignSettings(
        examples=40, seed=4, builds=(AttentionBuild("float32", 8, 16, 8),), checks=(), shrink_seconds=0.0
    )
    results = []
    for number in (1, 2):
        monkeypatch.setattr(chosen_examiners, "WORKERS", number)
        load = functools.partial(fuzzed_variants.edited, "j < keys", new)
        result = run_campaign("it", load, how=how)
        assert result.verdict == verdict and math.isfinite(result.seconds)
        first = result.failure and (result.failure.first_case, result.failure.first_finding)
        results.append((first, result.examples, result.hardest, result.hardest_ratio, result.coverage))
    assert results[0] == results[1]


def test_a_short_campaign_has_one_worker_and_so_has_one_on_a_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chosen_examiners, "usable_cores", lambda: 8)
    machine = campaign.EMULATOR
    gpu = dataclasses.replace(machine, settings=RunSettings(device="gpu"))
    assert chosen_examiners._workers(CampaignSettings(examples=200), machine) == 1
    assert chosen_examiners._workers(CampaignSettings(examples=1000), gpu) == 1
    assert chosen_examiners._workers(CampaignSettings(examples=1000), machine) == chosen_examiners.WORKERS
    assert chosen_examiners._workers(CampaignSettings(examples=None, seconds=9.0), machine) == chosen_examiners.WORKERS
