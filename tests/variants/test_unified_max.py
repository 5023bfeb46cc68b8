"""unified-max where rows leave the range of the constant: answers, bytes, counters, and the choice of the constant."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from attention_answers import hold
from attention_runs import accuracy, executed, run
from claimed_traffic import bytes_by_buffer, traffic

from harness.emulator.plan_sanitizer import EmulatorSanitizer
from harness.model.discovery import discover
from harness.model.operation import draw_inputs
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from variants.attention.unified_max import unified_max, work
from variants.attention.unified_max.constant import LARGEST_LOG_WEIGHT, SMALLEST_LOG_SUM, choose_constant

VARIANT = discover().registry.get("unified-max-cupy")
SMALL = {"Br": 16, "split": 64}
PROBLEM = Problem(batch=2, heads=6, kv_heads=2, q_len=3, kv_len=600, head_dim=24, dtype="float16")


def inputs_with_scores(problem: Problem, scores: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs in which row i has these scores, (rows or 1, keys or 1), up to the rounding of 16-bit elements."""
    inputs = draw_inputs(problem, "normal", 4)
    Q, K = (np.zeros(shape, np.float64) for shape in (problem.q_shape, problem.kv_shape))
    rows = np.broadcast_to(scores, (problem.q_len, problem.kv_len))
    Q[..., 0], Q[..., 1] = rows[:, :1].T / problem.tau, 1 / problem.tau
    K[..., 0], K[..., 1] = 1.0, (rows - rows[:, :1])[-1]
    return {**inputs, "Q": Q.astype(inputs["Q"].dtype), "K": K.astype(inputs["K"].dtype)}


def assert_right(problem: Problem, inputs: dict[str, np.ndarray], tile: dict[str, int], tiles_again: int) -> None:
    """The answer is right, and so many tiles of rows read their Q, K and V twice."""
    execution = run(VARIANT, problem, inputs, tile=tile)
    answer = attention(problem, inputs)
    result = hold(execution.outputs, answer, error_budget(problem, inputs, answer, VARIANT.numerics))
    assert result.passed and not result.suspicious, result.reason
    assert VARIANT.claim is not None
    claim, counted = VARIANT.claim(problem, tile), traffic(execution)
    of = work(problem, tile["split"])
    tiles = problem.batch * problem.kv_heads_count * len(of.rows)
    assert counted.write_bytes == claim.write_bytes
    assert (counted.read_bytes - claim.read_bytes) * tiles == claim.further_read_bytes * tiles_again


@pytest.mark.parametrize("tile", [SMALL, {"Br": 16, "split": 512}])
@pytest.mark.parametrize(
    ("score", "tiles_again"),
    [(0.0, 0), (LARGEST_LOG_WEIGHT - 0.1, 0), (LARGEST_LOG_WEIGHT + 0.1, 4), (60.0, 4), (-60.0, 4), (200.0, 4)],
)
def test_rows_beyond_the_range_are_computed_again(score: float, tiles_again: int, tile: dict[str, int]):
    assert_right(PROBLEM, inputs_with_scores(PROBLEM, np.array([[score]])), tile, tiles_again)


@pytest.mark.parametrize(("above", "tiles_again"), [(0.1, 0), (-0.1, 4)])
def test_the_least_sum_is_that_of_all_keys(above: float, tiles_again: int):
    score = SMALLEST_LOG_SUM - math.log(PROBLEM.kv_len) + above
    assert_right(PROBLEM, inputs_with_scores(PROBLEM, np.array([[score]])), SMALL, tiles_again)


def test_one_row_of_a_tile_that_is_computed_again_leaves_the_others_bits_as_they_are():
    problem = dataclasses.replace(PROBLEM, batch=1, heads=1, kv_heads=1, q_len=4)
    calm = inputs_with_scores(problem, np.zeros((4, 1)))
    wild = inputs_with_scores(problem, np.array([[0.0], [30.0], [0.0], [-50.0]]))
    assert_right(problem, wild, SMALL, 1)
    outputs, expected = (run(VARIANT, problem, each, tile=SMALL).outputs for each in (wild, calm))
    for name in ("O", "lse"):
        assert outputs[name][:, :, ::2].tobytes() == expected[name][:, :, ::2].tobytes()


def test_one_key_beyond_the_range_in_one_split():
    scores = np.zeros((1, PROBLEM.kv_len))
    scores[0, 300] = 40.0
    assert_right(PROBLEM, inputs_with_scores(PROBLEM, scores), SMALL, 4)


@pytest.mark.parametrize(
    ("q_len", "heads", "fields"),
    [
        (1, 6, {"sinks": True}),
        (5, 14, {"mask": "causal", "alibi": True}),
        (40, 6, {"mask": "window:200,3", "sinks": True}),
        (16, 4, {"mask": "window:100", "softcap": 5.0}),
        (90, 2, {"mask": "causal", "kv_len": 30}),
    ],
)
def test_masks_and_terms(q_len: int, heads: int, fields: dict[str, object]):
    problem = Problem.from_fields({**PROBLEM.to_fields(), "heads": heads, "q_len": q_len, **fields})
    for regime in ("normal", "rising"):
        execution = executed(VARIANT, problem, regime, 1, tile=SMALL)
        result = accuracy(VARIANT, problem, regime, 1, execution)
        assert result.passed, result.reason
        assert VARIANT.claim is not None
        counted = traffic(execution)
        assert VARIANT.claim(problem, SMALL).holds(counted.read_bytes, counted.write_bytes)


@pytest.mark.parametrize("phi", [-20.0, 7.25])
def test_another_constant(phi: float):
    """Scores around phi are read once, and lse is that of the scores."""
    variant = unified_max("shifted", phi)
    inputs = inputs_with_scores(PROBLEM, np.array([[phi]]))
    execution = run(variant, PROBLEM, inputs, tile=SMALL)
    assert variant.claim is not None and traffic(execution) == variant.claim(PROBLEM, SMALL)
    answer = attention(PROBLEM, inputs)
    assert hold(execution.outputs, answer, error_budget(PROBLEM, inputs, answer, variant.numerics)).passed


def test_blocks_may_come_in_any_order():
    problem = dataclasses.replace(PROBLEM, kv_len=300)
    for regime in ("normal", "hot"):
        plan = VARIANT.plan(problem, SMALL)
        findings = EmulatorSanitizer(shuffled_runs=2).check(VARIANT, problem, plan, draw_inputs(problem, regime, 0))
        assert findings == (), [finding.message for finding in findings]


def test_splits_that_no_row_of_a_tile_sees_are_not_read():
    problem = Problem(heads=8, kv_heads=1, q_len=1, kv_len=2048, head_dim=64, dtype="bfloat16", mask="window:127")
    execution = executed(VARIANT, problem, "normal", 1)
    assert bytes_by_buffer(execution, "load")["K"] == 128 * 64 * 2
    assert bytes_by_buffer(execution, "store")["l_split"] == 32


@pytest.mark.compiles(False)
def test_the_constant_for_which_fewest_rows_are_computed_again():
    rng = np.random.default_rng(0)
    lse = np.concatenate((rng.uniform(3, 5, 1000), [-50.0, 90.0], [-math.inf]))
    chosen = choose_constant(lse)
    assert chosen.unsafe_rows == pytest.approx(2 / 1002)
    assert 5 - LARGEST_LOG_WEIGHT <= chosen.phi <= 3 - SMALLEST_LOG_SUM
    # Two rows farther apart than the range is wide: no constant serves both.
    apart = choose_constant([0.0, LARGEST_LOG_WEIGHT - SMALLEST_LOG_SUM + 1])
    assert apart.unsafe_rows == 0.5
    known = choose_constant([20.0], largest_scores=[10.0])
    assert known.unsafe_rows == 0 and 10 - LARGEST_LOG_WEIGHT <= known.phi <= 20 - SMALLEST_LOG_SUM
    with pytest.raises(ValueError, match="no row has a finite log-sum-exp"):
        choose_constant([-math.inf, math.nan])


@pytest.mark.compiles(False)
def test_what_is_out_of_reach_is_said():
    many = {"batch": 60_000, "q_len": 200}
    for fields, reason in (({"dtype": "float32"}, "choose float16 or bfloat16"), (many, "tiles of 16 rows")):
        said = VARIANT.supports(dataclasses.replace(PROBLEM, **fields))
        assert said is not None and reason in said
