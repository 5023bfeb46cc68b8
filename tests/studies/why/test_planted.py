"""Slowdowns that were planted into good kernels: `why SLOW FAST` names the planted cause first."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from emulators import emulator
from lanes import exhaustive_unless, thorough_unless

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

PLANTED = Path(__file__).parent / "planted"
H200 = GPUS["h200"]
PART = replace(
    H200,
    multiprocessors=32,
    float32_flops=H200.float32_flops * 32 / 132,
    tensor_flops={dtype: flops * 32 / 132 for dtype, flops in H200.tensor_flops.items()},
    memory_bytes_per_s=H200.memory_bytes_per_s * 32 / 132,
)
"""A quarter of an H200, which a quarter of the work fills."""
TILED = Problem(heads=16, q_len=256, kv_len=256, head_dim=64)
ROWS = Problem(heads=16, q_len=256, kv_len=256, head_dim=32)
CAUSAL = Problem.from_fields({"heads": 10, "q_len": 512, "kv_len": 512, "head_dim": 64, "causal": True})

REQUIRED = [
    ("uncoalesced-cupy", "good-cupy", TILED, causes.COALESCING),
    ("bank-conflicts-cupy", "good-cupy", TILED, causes.CONFLICTS),
    ("one-stage-less-cupy", "good-alone-cupy", TILED, causes.LATENCY),
    ("spills-cupy", "good-cupy", TILED, causes.SPILLS),
    ("tiny-tiles-cupy", "good-cupy", TILED, causes.TILE),
    ("re-read-cupy", "good-cupy", TILED, causes.REREAD),
    ("half-warp-cupy", "good-cupy", TILED, causes.IDLE_LANES),
    ("fp64-cupy", "good-cupy", TILED, causes.FP64),
    ("uncoalesced-numba", "good-numba", ROWS, causes.COALESCING),
    ("re-read-numba", "good-numba", ROWS, causes.REREAD),
    ("tiny-tiles-numba", "good-numba", ROWS, causes.TILE),
    ("half-warp-numba", "good-numba", ROWS, causes.IDLE_LANES),
    ("fp64-numba", "good-numba", ROWS, causes.FP64),
]
"""Slow, fast, problem, cause: the rules were made with these at hand."""

LATER = [
    ("launch-per-head-cupy", "good-cupy", TILED, causes.LAUNCHES),
    ("heaviest-last-cupy", "good-causal-cupy", CAUSAL, causes.IMBALANCE),
    ("divergence-cupy", "good-cupy", TILED, causes.IDLE_LANES),
    ("special-functions-cupy", "good-cupy", TILED, causes.SPECIAL),
    ("low-occupancy-cupy", "good-cupy", TILED, causes.FEW_WARPS),
    ("addresses-cupy", "good-cupy", TILED, causes.INTEGER),
    ("stride-2-numba", "good-numba", ROWS, causes.CONFLICTS),
]
"""Written by the names of causes alone, when the rules were done."""

THOROUGH = ("tiny-tiles-numba", "uncoalesced-numba", "re-read-numba", "addresses-cupy")
OF_MANY_BLOCKS = ("uncoalesced-cupy", "launch-per-head-cupy", "heaviest-last-cupy", "low-occupancy-cupy")
"""A usual cause, and those that depend on how many blocks and multiprocessors there are."""


@functools.cache
def registry() -> Registry:
    return discover_isolated([PLANTED / "tiled_cupy.py", PLANTED / "rows_numba.py"]).registry


@functools.cache
def profile(name: str, problem: Problem, gpu_name: str) -> Profile:
    settings = RunSettings(caches=CacheModel(BY_NAME[gpu_name]))
    executor = emulator(settings, instruments=Instruments(bank_conflicts=True, instructions=True))
    return profile_of(registry().get(name), Question.draw(problem), executor, H200.multiprocessor)


BY_NAME = {"part": PART, "whole": H200}


def why(slow: str, fast: str, problem: Problem, gpu_name: str = "part") -> WhyResult:
    profiles = profile(slow, problem, gpu_name), profile(fast, problem, gpu_name)
    return explain(*profiles, BY_NAME[gpu_name], "normal", 0)


@pytest.mark.parametrize(
    ("slow", "fast", "problem", "cause"),
    thorough_unless(lambda case: case[0] not in THOROUGH, [*REQUIRED, *LATER]),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_planted_cause_is_named_first(slow: str, fast: str, problem: Problem, cause: causes.Cause) -> None:
    result = why(slow, fast, problem)
    assert result.distance_seconds > 0
    assert result.causes[0].cause is cause, [(each.cause.name, each.seconds) for each in result.causes[:4]]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("slow", "fast", "problem", "cause"),
    exhaustive_unless(lambda case: case[0] in OF_MANY_BLOCKS, [*REQUIRED, *LATER]),
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_on_a_whole_gpu_too(slow: str, fast: str, problem: Problem, cause: causes.Cause) -> None:
    whole = replace(problem, heads=40 if problem is CAUSAL else 66, kv_heads=40 if problem is CAUSAL else 66)
    assert why(slow, fast, whole, "whole").causes[0].cause is cause


def test_costs_add_up_to_the_distance() -> None:
    result = why("uncoalesced-cupy", "good-cupy", TILED)
    assert sum(each.seconds for each in result.causes) == pytest.approx(result.distance_seconds)
    back = why("good-cupy", "uncoalesced-cupy", TILED)
    assert {each.cause: -each.seconds for each in back.causes} == pytest.approx(
        {each.cause: each.seconds for each in result.causes}
    )
    assert back.causes[-1].cause is causes.COALESCING


def test_it_points_at_the_line_of_the_slip() -> None:
    for slow, word in (("uncoalesced-cupy", "cp.async.ca"), ("fp64-cupy", "WEIGHT"), ("bank-conflicts-cupy", "Ks +")):
        file, line = why(slow, "good-cupy", TILED).causes[0].where
        assert word in Path(file).read_text().splitlines()[line - 1], slow
