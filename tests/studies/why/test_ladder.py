"""`why STEP NEXT` names what the next step of a published ladder changes among the first three causes."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from emulators import emulator

from harness.emulator.instruments import Instruments
from harness.execution.isolation.variants import discover_isolated
from harness.execution.judging.question import Question
from harness.execution.run_settings import CacheModel, RunSettings
from harness.model.variant import Registry
from harness.operations.attention.problem import Problem
from harness.studies.why import causes
from harness.studies.why.profile import Profile, profile_of
from harness.studies.why.result import WhyResult, explain
from harness.support.gpu_data_sheets import GPUS

LADDER = Path(__file__).parent / "planted" / "ladder_cupy.py"
GPU = GPUS["rtx4090"]
"""The GPU in the table that resembles most the one on which the steps were measured, an RTX 5090."""
PROBLEM = Problem(heads=128, q_len=128, kv_len=256, head_dim=128, dtype="float16")
NEXT = [
    ("plain-cupy", "swizzled-cupy", causes.CONFLICTS),
    ("swizzled-cupy", "two-stages-cupy", causes.LATENCY),
    ("two-stages-cupy", "four-matrices-cupy", causes.MEMORY),
    ("four-matrices-cupy", "larger-tiles-cupy", causes.STEPS),
    ("larger-tiles-cupy", "fused-scale-cupy", causes.ARITHMETIC),
]
"""A step, the next one, and the cause that the next one is about."""


@functools.cache
def registry() -> Registry:
    return discover_isolated([LADDER]).registry


@functools.cache
def profile(name: str) -> Profile:
    settings = RunSettings(caches=CacheModel(GPU))
    executor = emulator(settings, instruments=Instruments(bank_conflicts=True, instructions=True))
    return profile_of(registry().get(name), Question.draw(PROBLEM), executor, GPU.multiprocessor)


def why(slow: str, fast: str | None = None) -> WhyResult:
    return explain(profile(slow), None if fast is None else profile(fast), GPU, "normal", 0)


def first_three(result: WhyResult) -> list[causes.Cause]:
    return [each.cause for each in result.causes[:3]]


@pytest.mark.parametrize(
    ("step", "following", "cause"), NEXT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_next_step_is_among_the_first_three(step: str, following: str, cause: causes.Cause) -> None:
    result = why(step, following)
    assert result.slow.verdict == "pass"
    assert result.distance_seconds > 0
    found = {each.cause: each.seconds for each in result.causes}
    assert cause in first_three(result) and found[cause] > 0, [(each.name, found[each]) for each in found]


@pytest.mark.parametrize(
    ("step", "following", "cause"), NEXT[:2], ids=lambda value: value if isinstance(value, str) else ""
)
def test_conflicts_and_waits_are_named_without_the_next_step(step: str, following: str, cause: causes.Cause) -> None:
    assert cause in first_three(why(step))


def test_smaller_tiles_of_the_faster_kernel_are_not_why_the_other_is_slower() -> None:
    result = why("swizzled-cupy", "two-stages-cupy")
    slow, fast = result.figures(causes.STEPS)
    assert slow is not None and fast is not None and slow < fast
    assert not {causes.TILE, causes.STEPS} & {each.cause for each in result.causes}
