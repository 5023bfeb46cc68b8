"""A campaign over workers comes to what it comes to alone, failures, shrinking and coverage included."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import sys
from collections.abc import Iterator

import fuzzed_variants
import pytest

from harness.execution.cluster.cluster_client import ClusterClient
from harness.operations.attention.cases.build import AttentionBuild
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.drawing import sequence
from harness.studies.fuzz.drawing.search import Search
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings

BUILD = AttentionBuild("float32", 8, 16, 8)


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterClient]:
    said: list[str] = []
    with ClusterClient(2, said.append) as own:
        yield own
    assert not said


def without_times(result: CampaignResult) -> CampaignResult:
    return dataclasses.replace(result, seconds=0.0, shrink_seconds=0.0)


def both(cluster: ClusterClient, load: object, examples: int) -> list[CampaignResult]:
    how = CampaignSettings(examples=examples, seed=4, builds=(BUILD,), shrink_seconds=120.0)
    return [without_times(run_campaign("it", load, how=how, cluster=workers)) for workers in (None, cluster)]


def test_what_is_chosen_fails_and_is_shrunk_in_the_same_way(cluster: ClusterClient):
    alone, together = both(cluster, functools.partial(fuzzed_variants.edited, "j < keys", "j < keys - (keys > 30)"), 40)
    assert alone == together and alone.failure is not None and alone.failure.shrinking > 5


# That a search is spread at all is shown by what is chosen; that it is drawn alike, by the next but two.
@pytest.mark.thorough
def test_searches_fail_and_are_shrunk_in_the_same_way(cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sequence.Chosen, "__init__", None)  # nothing is chosen
    monkeypatch.setattr(sequence.ChosenCases, "draw", lambda self, is_known: None)
    monkeypatch.setattr(sequence, "FAR_AFTER", 90)
    alone, together = both(cluster, functools.partial(fuzzed_variants.edited, "j < keys", "j < keys - (keys > 30)"), 90)
    assert alone == together and alone.failure is not None and alone.failure.case.problem.kv_len == 31


@pytest.mark.thorough
def test_a_right_kernel_passes_with_as_many_examples_and_the_same_coverage(cluster: ClusterClient):
    alone, together = both(cluster, fuzzed_variants.right, 230)
    assert alone == together and (alone.verdict, alone.examples) == ("pass", 230)


def test_a_variant_that_cannot_be_loaded_is_the_same_error(cluster: ClusterClient):
    alone, together = both(cluster, fuzzed_variants.unloadable, 20)
    assert alone == together and alone.verdict == "error"


DRAWS = """
import sys
sys.path[:0] = {path!r}
{more}
from harness.operations.attention.cases.build import AttentionBuild
from harness.studies.fuzz.drawing.search import Search
search = Search("attention", (AttentionBuild("float32", 8, 16, 8),), 400, 7, 3, None, (), (), ())
search.run(lambda case: print(case.to_json()) or (False, hash(case.seed) % 97 / 97))
"""


def test_a_search_draws_the_same_whatever_its_process_has_loaded():
    def drawn(more: str) -> str:
        program = DRAWS.format(path=sys.path, more=more)
        return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout

    plain = drawn("")
    assert len(set(plain.splitlines())) == 400
    assert plain == drawn("import harness.emulator.executor, harness.text.report, harness.studies.traffic.command")


def test_the_plainest_example_can_be_left_out():
    def cases(is_known: bool) -> list[object]:
        met: list[object] = []
        search = Search("attention", (BUILD,), 10, 1, 1, None, (), (), (), is_known)
        search.run(lambda case: (met.append(case), (False, None))[1])  # type: ignore[func-returns-value]
        return met

    plainest = cases(False)[0]
    assert plainest not in cases(True) and len(cases(True)) == 10
