"""Campaigns that look on: a race that no answer shows is a finding, and its replay looks on as well."""

from __future__ import annotations

import functools
from dataclasses import replace

import fuzzed_variants
import pytest

from harness.execution.run_settings import RunSettings
from harness.operations.attention.cases.build import AttentionBuild
from harness.options.machine import WORKER, Machine
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.replaying import replay
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings
from harness.support.errors import UsageError

BUILDS = (AttentionBuild("float32", 8, 16, 8),)
SANITIZED = Machine(replace(WORKER, sanitize=True))
# Each of two warps reads what the other writes, with no barrier between; whoever comes first, it is 0 or 1.
EDIT = (
    "if (i >= N_q) return;",
    "__shared__ int seen[64]; seen[threadIdx.x] = 0; __syncthreads(); seen[threadIdx.x] = 1; __threadfence_block();"
    "if (i >= N_q || seen[63 - threadIdx.x] > 1) return;",
)
RACING = functools.partial(fuzzed_variants.edited, *EDIT)


def campaign(load: object, machine: Machine, checks: tuple[str, ...] | None = ()) -> CampaignResult:
    return run_campaign("it", load, machine, CampaignSettings(examples=9, seed=1, builds=BUILDS, checks=checks))


@pytest.mark.exhaustive
def test_a_race_behind_right_answers_is_found_by_looking_on_only():
    result = campaign(RACING, SANITIZED)
    assert result.failure is not None
    finding = result.failure.finding
    assert finding.kind in ("RAW race", "WAW race", "WAR race") and "shared memory" in finding.reason
    assert result.failure.tiles == (1, 1)
    assert replay(result.failure.case, RACING, SANITIZED).finding == finding
    assert replay(result.failure.case, RACING).finding is None


def test_a_usual_campaign_sanitizes_some_cases_and_their_replays():
    result = campaign(RACING, Machine(), checks=None)
    assert result.failure is not None
    failure = result.failure
    assert failure.finding.kind in ("RAW race", "WAW race", "WAR race")
    assert failure.case.check == "sanitizer" and failure.repeatable
    assert replay(failure.case, RACING).finding == failure.finding
    with pytest.raises(UsageError, match="--device emulator"):
        replay(failure.case, RACING, Machine(RunSettings(device="gpu")))


@pytest.mark.exhaustive
def test_a_right_kernel_passes_while_it_is_looked_at():
    result = campaign(fuzzed_variants.right, SANITIZED)
    assert (result.verdict, result.examples) == ("pass", 9)
