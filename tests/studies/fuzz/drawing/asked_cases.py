"""What a fuzzing campaign asks of a variant, without running it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
from lanes import exhaustive, thorough_unless
from no_kernel import NoKernel

from harness.model.cases.case import Case
from harness.model.discovery import discover
from harness.studies.fuzz import campaign
from harness.studies.fuzz.campaign import run_campaign
from harness.studies.fuzz.examining import chosen_examiners
from harness.studies.fuzz.result import CampaignResult
from harness.studies.fuzz.settings import CampaignSettings

SEEDS = [*thorough_unless(lambda seed: seed == 0, range(2)), *exhaustive(range(2, 12))]


@functools.cache
def whole_campaign(name: str, seed: int) -> tuple[tuple[Case, ...], CampaignResult]:
    """What a usual campaign asks, and what it comes to: several tests look at the same one."""
    with pytest.MonkeyPatch.context() as patch:
        asked, result = cases_of(name, seed, patch)
    return tuple(asked), result


def cases_of(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch, refusals: Callable[[Case], str | None] = lambda case: None,
    **how: object,
) -> tuple[list[Case], CampaignResult]:  # fmt: skip
    """What a campaign of the variant asks its workers."""
    variant = discover().registry.get(name)
    workers = type("Workers", (NoKernel,), {"asked": [], "refusals": staticmethod(refusals)})
    monkeypatch.setattr(chosen_examiners, "Workers", workers)
    settings = CampaignSettings(seed=seed, **how)
    result = run_campaign(name, lambda: variant, how=settings, operation=variant.operation)
    return workers.asked, result


@functools.cache
def usual_cases(name: str, seed: int) -> tuple[Case, ...]:
    """The first cases of a usual campaign, which are chosen on purpose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(campaign._Campaign, "_explore", lambda self, *arguments: None)
        return tuple(cases_of(name, seed, patch)[0][:96])
