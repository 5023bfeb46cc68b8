"""The strategies draw what they promise, and shrink to what is plain."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, seed, settings

from harness.model.cases.case import Case
from harness.operations.attention.cases.axes import AttentionAxes
from harness.operations.attention.cases.build import BUILDS, AttentionBuild
from harness.operations.attention.cases.case_values import PRODUCT_ROWS, one_edit
from harness.operations.attention.cases.strategies import cases, edits, problems, regimes, seeds
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.problem import Problem
from harness.operations.attention.score_terms import SLOPES, STEEP_SLOPES, Bias

BUILD = AttentionBuild("float32", 16, tile_rows=64, tile_keys=32)


def drawn(count: int, **options: object) -> list[Case]:
    collected: list[Case] = []

    @seed(1)
    @settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate])
    @given(cases(**options))
    def collect(case: Case) -> None:
        collected.append(case)

    collect()
    return collected


@functools.cache
def many_cases() -> list[Case]:
    """Drawn by the first test that wants them: the suite's processes all import this file."""
    return drawn(400, builds=(BUILD,), checks=("determinism",))


PROMISED: dict[str, Callable[[Case], bool]] = {
    "one row": lambda c: c.problem.q_len == 1,
    "one key": lambda c: c.problem.kv_len == 1,
    "tile - 1": lambda c: c.problem.kv_len == 31,
    "tile": lambda c: c.problem.kv_len == 32,
    "tile + 1": lambda c: c.problem.kv_len == 33,
    "a prime in the last tile": lambda c: c.problem.q_len % 64 == 61,
    "three tiles of keys": lambda c: c.problem.kv_len > 64,
    "causal, more keys": lambda c: c.problem.causal and c.problem.q_len < c.problem.kv_len,
    "causal, rows that see nothing": lambda c: c.problem.causal and c.problem.q_len > c.problem.kv_len,
    "two groups of heads": lambda c: c.problem.group > 1 and c.problem.kv_heads_count > 1,
    "a batch": lambda c: c.problem.batch > 1,
    "a crowd": lambda c: c.problem.batch * c.problem.heads >= 20,
    "a negative scale": lambda c: c.problem.tau < 0,
    "no scores at all": lambda c: c.problem.tau == 0,
    "edits": lambda c: len(c.edits) > 0,
    "NaN behind a causal mask": lambda c: c.problem.causal and any(e.value != e.value for e in c.edits),
    "a check": lambda c: c.check == "determinism",
}


@pytest.mark.parametrize("promise", PROMISED)
def test_400_cases_hold_what_is_promised(promise: str):
    assert any(PROMISED[promise](case) for case in many_cases())


def test_400_cases_hold_every_regime():
    assert {case.regime for case in many_cases()} == set(REGIMES)


def test_problems_stay_within_their_tiles():
    tilings = {BUILD.tiles(case.problem) for case in many_cases()}
    assert max(rows * keys for rows, keys in tilings) == 6
    small = {BUILD.tiles(case.problem) for case in drawn(100, builds=(BUILD,), most_tiles=2)}
    assert small == {(1, 1), (1, 2), (2, 1)}


def test_builds_are_drawn_and_go_with_their_tiles():
    other = AttentionBuild("float16", 24, 16, 8, tile="Br=16,Bc=8")
    seen = {(c.problem.dtype, c.problem.head_dim, c.tile) for c in drawn(50, builds=(BUILD, other))}
    assert seen == {("float32", 16, None), ("float16", 24, "Br=16,Bc=8")}
    assert any(build.head_dim % 8 for build in BUILDS[:3])


def test_the_plainest_case_is_what_everything_shrinks_to():
    plainest = find(cases(), lambda case: True, settings=settings(database=None))
    assert plainest == Case(Problem(heads=1, q_len=1, kv_len=1, head_dim=16))


def test_each_strategy_can_be_used_alone():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=4)
    quiet = settings(database=None, max_examples=500, suppress_health_check=list(HealthCheck))
    assert find(problems((BUILD,)), lambda p: p.kv_len > 32, settings=quiet).kv_len == 33
    assert find(regimes(), lambda r: r != "normal", settings=quiet) in REGIMES
    assert find(seeds(), lambda s: s > 9, settings=quiet) == 10
    assert len(find(edits(problem), lambda e: len(e) > 1, settings=quiet)) == 2


# --- What depends on distances ---------------------------------------------------------------------------------------

WITH_ALIBI = AttentionBuild("float32", 16, tile_rows=64, tile_keys=32, features=("alibi",))
PLAINEST = {
    "q_len": "2 to 4 tiles",
    "kv_len": "2 to 4 tiles",
    "mask": "none",
    "heads": "1",
    "batch": "1",
    "scale": "default",
    "edits": "none",
    "regime": "normal",
    "property": "none",
}


def chosen(build: AttentionBuild, choice: Mapping[str, str], count: int = 200) -> list[Case]:
    axes, rng = AttentionAxes(None, (), ("causal", "window")), random.Random(0)
    return [axes.case(build, PLAINEST | choice, rng) for _ in range(count)]


def share_beside_edges(found: list[Case]) -> float:
    """Of problems whose keys turn from before a row to behind it two places from an edge of a matrix product."""
    turns = [(case.problem.kv_len - case.problem.q_len) % PRODUCT_ROWS for case in found]
    return sum(turn in (2, PRODUCT_ROWS - 2) for turn in turns) / len(turns)


@pytest.mark.parametrize(
    ("choice", "least", "most_without"),
    [({}, 0.4, 0.25), ({"kv_len": "whole tiles"}, 0.4, 0.25), ({"kv_len": "equal to q_len"}, 0.4, 0.0)],
    ids=str,
)
def test_with_alibi_lengths_lie_beside_the_edges_of_products(
    choice: Mapping[str, str], least: float, most_without: float
):
    assert share_beside_edges(chosen(WITH_ALIBI, choice)) > least
    assert share_beside_edges(chosen(BUILD, choice)) <= most_without


def test_with_alibi_the_search_draws_such_lengths_too():
    found = [case for case in drawn(300, builds=(WITH_ALIBI,)) if case.problem.kv_len > WITH_ALIBI.tile_keys]
    assert share_beside_edges(found) > 0.3


def test_half_of_the_problems_with_alibi_have_a_steep_slope():
    for found in (chosen(WITH_ALIBI, {}), drawn(200, builds=(WITH_ALIBI,))):
        steep = [edit for case in found for edit in case.edits if edit.array == SLOPES and edit.value in STEEP_SLOPES]
        assert 0.3 < len(steep) / len(found) < 0.7
    assert not any(edit.array == SLOPES for case in chosen(BUILD, {"edits": "some"}) for edit in case.edits)


def test_biases_vary_over_every_set_of_axes():
    with_bias = AttentionBuild("float32", 16, tile_rows=64, tile_keys=32, features=("bias",))
    for found in (chosen(with_bias, {}), drawn(200, builds=(with_bias,))):
        met = {case.problem.bias for case in found}
        assert met == {*Bias.values} and len(met) == 7
    # Other values do not depend on it.
    for one, other in zip(chosen(with_bias, {}, 1), chosen(dataclasses.replace(with_bias, features=("sinks",)), {}, 1)):
        assert (one.problem.q_len, one.problem.kv_len) == (other.problem.q_len, other.problem.kv_len)


def test_half_of_the_edits_behind_a_mask_lie_next_to_what_is_seen():
    problem = Problem(heads=1, q_len=200, kv_len=400, head_dim=4, mask="documents:200+200")
    rng = random.Random(0)
    keys = [edit.index[2] for edit in (one_edit(rng.choice, problem) for _ in range(400)) if edit.array in "KV"]
    assert np.mean([key in (199, 200) for key in keys]) == pytest.approx(0.5, abs=0.1)
