"""Dropout: which weights, the answer, its budget, what is said of it."""

from __future__ import annotations

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
from attention_answers import hold
from trials import trial_of

from harness.model.cases.case import Case
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.cases.build import BUILDS
from harness.operations.attention.dropout import kept_keys, philox
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.needed_bytes import needed_read_bytes
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import COMPILED_FEATURES, LAYOUT, Problem
from harness.operations.attention.properties import PROPERTIES
from harness.support.errors import ProblemError, UsageError

pytestmark = pytest.mark.compiles(False)

f32 = np.float32
SMALL = {"batch": 2, "heads": 4, "kv_heads": 2, "q_len": 5, "kv_len": 150, "head_dim": 4}
STRICT = Numerics(
    scores="float32", weights="float32", functions="accurate", sums="nearest", one_score=True, divides_last=True
)
FULL = 0xFFFFFFFF


def philox_of_one(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 as section 3 of the paper has it: a counter of two halves, each a round of its own."""
    for number in range(10):
        products = (0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2])
        keys = [(key[0] + number * 0x9E3779B9) % 2**32, (key[1] + number * 0xBB67AE85) % 2**32]
        counter = [
            products[1] // 2**32 ^ counter[1] ^ keys[0],
            products[1] % 2**32,
            products[0] // 2**32 ^ counter[3] ^ keys[1],
            products[0] % 2**32,
        ]
    return counter


@functools.cache
def is_kept(problem: Problem, b: int, h: int, i: int, k: int) -> bool:
    counter = [k // 32 * 8 + k % 8, i // 32 * 8 + i % 8, h, b]
    words = philox_of_one(counter, [problem.dropout_seed % 2**32, problem.dropout_seed // 2**32])
    return words[k % 32 // 8].to_bytes(4, "little")[i % 32 // 8] >= round(problem.dropout * 256)


def one_by_one(problem: Problem, inputs: dict[str, np.ndarray], b: int, h: int, i: int) -> tuple[np.ndarray, float]:
    """O and lse of one row, weight by weight."""
    logits, values = [], []
    for j in range(problem.kv_len):
        if problem.causal and j > i + problem.kv_len - problem.q_len:
            continue
        q, k, v = (inputs[name][b, at, n].astype(float) for name, at, n in
                   (("Q", h, i), ("K", h // problem.group, j), ("V", h // problem.group, j)))  # fmt: skip
        logits.append(problem.tau * float(q @ k))
        values.append(v / (1 - problem.dropout) if is_kept(problem, b, h, i, j) else 0 * v)
    if problem.sinks:
        logits.append(float(inputs["sinks"][h]))
        values.append(np.zeros(problem.head_dim))
    lse = math.log(sum(map(math.exp, logits)))
    return sum(math.exp(s - lse) * v for s, v in zip(logits, values)), lse


# --- Which weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # Of Random123's known answers: nothing, all bits, digits of pi.
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([FULL] * 4, [FULL] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
         [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ],
    ids=["zeros", "ones", "pi"],
)  # fmt: skip
def test_philox_gives_the_known_answers(counter: list[int], key: list[int], words: list[int]):
    assert philox_of_one(counter, key) == words
    found = philox(tuple(np.array([word], np.uint64) for word in counter), (key[0], key[1]))
    assert [int(word[0]) for word in found] == words


def test_philox_of_many_counters_is_that_of_each():
    rng = np.random.default_rng(0)
    counters = rng.integers(0, 2**32, (4, 50), dtype=np.uint64)
    found = np.stack(philox(tuple(counters), (7, FULL)))
    expected = [philox_of_one([int(word) for word in counter], [7, FULL]) for counter in counters.T]
    assert np.array_equal(found.T, expected)


def test_each_weight_has_the_number_that_the_contract_gives_it():
    problem = Problem(**SMALL, dropout=0.4, dropout_seed=2**40 + 3)
    kept = kept_keys(problem, slice(1, 2), slice(1, 4), slice(2, 5))
    assert kept.shape == (1, 3, 3, 150)
    for h, i, k in np.ndindex(kept.shape[1:]):
        assert kept[0, h, i, k] == is_kept(problem, 1, 1 + h, 2 + i, k)


@pytest.mark.parametrize("dropout", [2**-8, 26 / 256, 0.5, 230 / 256, 1 - 2**-8])
def test_the_share_that_drops_out_is_the_one_asked_for(dropout: float):
    problem = Problem(batch=2, heads=3, q_len=256, kv_len=321, dropout=dropout, dropout_seed=11)
    dropped = ~kept_keys(problem, slice(0, 2), slice(0, 3), slice(0, 256))
    deviation = math.sqrt(dropped.size * dropout * (1 - dropout))
    assert abs(dropped.sum() - dropped.size * dropout) <= 5 * deviation


def test_rows_heads_batch_entries_and_seeds_differ():
    problem = Problem(batch=2, heads=2, q_len=64, kv_len=640, dropout=0.5)
    seeds = (0, 1, 2**32, 2**63)
    kept = np.stack(
        [
            kept_keys(dataclasses.replace(problem, dropout_seed=seed), slice(0, 2), slice(0, 2), slice(0, 64))
            for seed in seeds
        ]
    )
    rows = kept.reshape(-1, 640).astype(float) - 0.5
    # Independent rows agree in half of their keys, give or take; none is another one's twin, or its opposite.
    agreement = np.abs(rows @ rows.T) * 4 / 640 - np.eye(len(rows))
    assert agreement.max() < 7 / math.sqrt(640)
    # Nor are keys, and neighbours among them.
    columns = rows.T @ rows * 4 / len(rows) - np.eye(640)
    assert np.abs(columns).max() < 7 / math.sqrt(len(rows))


# --- The answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"mask": "causal"}, {"sinks": True}], ids=str)
def test_the_oracle_gives_what_the_formula_does(fields: dict[str, object]):
    problem = Problem(**SMALL, **fields, dropout=0.3, dropout_seed=2**35)
    inputs = draw_inputs(problem, "normal", 3)
    answer = attention(problem, inputs)
    for b, h, i in np.ndindex(problem.batch, problem.heads, problem.q_len):
        O, lse = one_by_one(problem, inputs, b, h, i)
        np.testing.assert_allclose(answer["O"][b, h, i], O, rtol=1e-10, atol=1e-13)
        np.testing.assert_allclose(answer["lse"][b, h, i], lse, rtol=1e-12)


def test_a_part_has_the_answer_that_it_has_in_the_whole():
    problem = Problem(**SMALL, dropout=0.5)
    inputs = draw_inputs(problem, "normal", 0)
    where = (slice(1, 2), slice(2, 3), slice(1, 4))
    part = attention(problem, inputs, Part(where, "rows of a head"))
    np.testing.assert_allclose(part["O"], attention(problem, inputs)["O"][where], rtol=1e-13)


def test_lse_knows_nothing_of_it():
    problem = Problem(**SMALL, dropout=0.5)
    inputs = draw_inputs(problem, "normal", 0)
    plain = dataclasses.replace(problem, dropout=0.0)
    assert np.array_equal(attention(problem, inputs)["lse"], attention(plain, inputs)["lse"])
    budgets = [error_budget(p, inputs, attention(p, inputs), STRICT)["lse"].allowed for p in (problem, plain)]
    np.testing.assert_allclose(*budgets, rtol=0.1)  # the product with 1 / (1 - P) is one more rounding of a weight


def test_a_dropped_nonfinite_value_gives_nan_and_any_result_is_accepted():
    problem = Problem(heads=1, q_len=40, kv_len=8, head_dim=2, dropout=0.5)
    inputs = draw_inputs(problem, "normal", 0)
    inputs["V"][0, 0, 3, 0] = np.inf
    answer = attention(problem, inputs)
    kept = np.array([is_kept(problem, 0, 0, i, 3) for i in range(40)])
    assert 0 < kept.sum() < 40
    assert np.all(answer["O"][0, 0, kept, 0] == np.inf) and np.all(np.isnan(answer["O"][0, 0, ~kept, 0]))
    assert np.isfinite(answer["O"][..., 1]).all()
    budget = error_budget(problem, inputs, answer)
    assert (
        np.all(np.isinf(budget["O"].allowed[0, 0, ~kept, 0])) and not np.isinf(budget["O"].allowed[0, 0, kept, 0]).any()
    )


# --- What it may be off by -------------------------------------------------------------------------------------------

WRONG = {
    "scale missing": {"factor": 1.0},
    "weights left out of the denominator": {"from_denominator": True},
    "row and key exchanged": {"transposed": True},
    "the neighbour's number": {"shift": 1},
}


def kernel(
    problem: Problem,
    inputs: dict[str, np.ndarray],
    factor: float | None = None,
    from_denominator: bool = False,
    transposed: bool = False,
    shift: int = 0,
    stored: type = f32,
) -> dict[str, np.ndarray]:
    """Attention in float32, right, or wrong in one way; `stored`: what scores are rounded to."""
    q, k, v = (inputs[name].repeat(1 if name == "Q" else problem.group, axis=1).astype(f32) for name in "QKV")
    s = (f32(problem.tau) * (q @ k.mT)).astype(stored).astype(f32)
    m = s.max(axis=-1, keepdims=True)
    p = np.exp(s - m)
    length = max(problem.q_len, problem.kv_len)
    wide = dataclasses.replace(problem, q_len=length, kv_len=length)
    kept = kept_keys(wide, slice(0, problem.batch), slice(0, problem.heads), slice(0, length))
    kept = np.roll(kept.mT if transposed else kept, shift, axis=-1)[..., : problem.q_len, : problem.kv_len]
    l = (p * kept if from_denominator else p).sum(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        lse = (m + np.log(l))[..., 0]
        O = (p * kept) @ v * f32(problem.kept_factor if factor is None else factor) / l
    return {"O": O, "lse": lse.astype(f32)}


BUDGETED = Problem(batch=2, heads=2, kv_heads=1, q_len=40, kv_len=48, head_dim=8, dropout=0.3)


@pytest.mark.parametrize("regime", REGIMES)
def test_a_right_kernel_keeps_to_its_budget(regime: str):
    for problem in (BUDGETED, dataclasses.replace(BUDGETED, dropout=0.5, dropout_seed=2**33)):
        for seed in range(3):
            inputs = draw_inputs(problem, regime, seed)
            answer = attention(problem, inputs)
            result = hold(kernel(problem, inputs), answer, error_budget(problem, inputs, answer, STRICT))
            assert result.passed and not result.suspicious, result.reason


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_one_does_not(mistake: str):
    inputs = draw_inputs(BUDGETED, "normal", 0)
    answer = attention(BUDGETED, inputs)
    result = hold(kernel(BUDGETED, inputs, **WRONG[mistake]), answer, error_budget(BUDGETED, inputs, answer))
    assert not result.passed


def test_stored_scores_come_near_the_budget_and_stay_below():
    """Also those of keys that drop out, whose errors move the denominator."""
    problem = dataclasses.replace(BUDGETED, dtype="float16", dropout=0.75)
    inputs = draw_inputs(problem, "hot", 1)
    answer = attention(problem, inputs)
    budget = error_budget(problem, inputs, answer, dataclasses.replace(STRICT, scores="problem"))
    budget["O"].allowed[budget["O"].allowed == 0] = np.inf
    error = np.abs(kernel(problem, inputs, stored=np.float16)["O"] - answer["O"]) / budget["O"].allowed
    assert 0.1 < error.max() <= 1
    few_kept = np.array([[[sum(is_kept(problem, b, h, i, k) for k in range(48)) < 9 for i in range(40)]
                          for h in range(2)] for b in range(2)])  # fmt: skip
    assert error[few_kept].max() > 0.05


def test_the_budget_is_not_vacuous():
    problem = dataclasses.replace(BUDGETED, dtype="float16", dropout=0.5)
    inputs = draw_inputs(problem, "normal", 1)
    answer = attention(problem, inputs)
    outputs = {"O": kernel(problem, inputs)["O"].astype(np.float16)}
    assert hold(outputs, answer, error_budget(problem, inputs, answer, STRICT)).error_over_expected > 0.3
    for name in ("fast", "accurate"):
        budget = error_budget(
            BUDGETED, inputs, attention(BUDGETED, inputs), dataclasses.replace(STRICT, functions=name)
        )
        plain = dataclasses.replace(BUDGETED, dropout=0.0)
        without = error_budget(plain, inputs, attention(plain, inputs), dataclasses.replace(STRICT, functions=name))
        # Kept values are 1.43 times as large and lie apart from those that are 0.
        assert np.median(budget["O"].allowed) < 4 * np.median(without["O"].allowed)


def test_a_row_of_which_all_drops_out_is_0():
    problem = Problem(heads=1, q_len=64, kv_len=2, head_dim=4, dropout=0.75)
    inputs = draw_inputs(problem, "normal", 0)
    none = np.array([not is_kept(problem, 0, 0, i, 0) and not is_kept(problem, 0, 0, i, 1) for i in range(64)])
    answer = attention(problem, inputs)
    assert none.any() and np.all(answer["O"][0, 0, none] == 0) and np.isfinite(answer["lse"]).all()
    assert np.all(error_budget(problem, inputs, answer, STRICT)["O"].allowed[0, 0, none] < 1e-30)


@pytest.mark.parametrize(("dropout", "is_exact"), [(0.5, True), (0.75, True), (0.3, False)])
def test_a_factor_that_changes_no_bits_leaves_exact_answers(dropout: float, is_exact: bool):
    even = Problem(heads=1, q_len=9, kv_len=16, head_dim=4, dropout=dropout)
    inputs = draw_inputs(even, "exact", 0)
    budget = error_budget(even, inputs, attention(even, inputs), STRICT)
    assert np.all(budget["O"].allowed == 0) if is_exact else np.all(budget["O"].allowed > 0)


def test_a_needle_that_drops_out_leaves_what_is_beside_it():
    problem = Problem(heads=1, q_len=30, kv_len=4, head_dim=2, dropout=0.5)
    inputs = draw_inputs(problem, "uniform", 0)
    inputs["Q"][:], inputs["K"][:] = 1, 0
    inputs["K"][0, 0, 1] = 20  # 28 above the others
    answer = attention(problem, inputs)
    budget = error_budget(problem, inputs, answer, STRICT)
    kept = np.array([[is_kept(problem, 0, 0, i, k) for k in range(4)] for i in range(30)])
    needle, others = kept[:, 1], kept[:, [0, 2, 3]].any(axis=1)
    assert np.all(budget["O"].allowed[0, 0, needle] == 0)
    assert np.all(answer["O"][0, 0, needle] > 0.01)
    small = ~needle & others
    assert small.any() and np.all(answer["O"][0, 0, small] > 0) and np.all(answer["O"][0, 0, small] < 1e-8)
    assert np.all(budget["O"].allowed[0, 0, small] > 0) and np.all(
        budget["O"].allowed[0, 0, small] < 1e-3 * answer["O"][0, 0, small]
    )


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_right_kernel_has_every_property(name: str):
    def run(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return kernel(problem, inputs)

    for regime in ("normal", "exact", "hot"):
        inputs = draw_inputs(BUDGETED, regime, 1)
        assert PROPERTIES[name].violation(trial_of(BUDGETED, inputs, run, STRICT)) is None, regime


def test_a_row_beyond_what_weights_may_reach_is_no_mean():
    inputs = draw_inputs(BUDGETED, "normal", 1)
    outputs = {"O": 4 * kernel(BUDGETED, inputs)["O"]}
    trial = trial_of(BUDGETED, inputs, lambda problem, inputs: outputs, STRICT)
    assert PROPERTIES["convex-hull"].violation(trial) is not None


def test_what_needs_to_be_read_is_not_worked_out():
    inputs = draw_inputs(BUDGETED, "uniform", 0)
    assert needed_read_bytes(dataclasses.replace(BUDGETED, dropout=0.0), inputs) > 0
    assert needed_read_bytes(BUDGETED, inputs) == 0


# --- The problem -----------------------------------------------------------------------------------------------------


def test_a_share_is_a_number_of_parts_of_256():
    assert Problem(dropout=0.1).dropout == 26 / 256
    assert (Problem(dropout=0.1).dropout_threshold, Problem(dropout=0.75).kept_factor) == (26, 4.0)
    assert Problem(dropout=0.1, dropout_seed=3) == Problem(dropout=0.1 + 1e-7, dropout_seed=3)
    assert Problem().kept_factor == 1.0


@pytest.mark.parametrize("value", [-0.1, 1, 1.5, math.nan, True, "0.1"])
def test_a_share_is_below_1(value: object):
    with pytest.raises(ProblemError, match=r"dropout is .*; it has to be a number from 0 to below 1"):
        Problem(dropout=value)


@pytest.mark.parametrize(("value", "said"), [(1e-9, "0: leave it out, or take more"), (1 - 1e-9, "1: take less")])
def test_a_share_that_comes_to_nothing_or_all_is_refused(value: float, said: str):
    with pytest.raises(ProblemError, match=f"rounded to a multiple of 1 / 256, here {said}"):
        Problem(dropout=value)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True])
def test_a_seed_has_64_bits(seed: object):
    with pytest.raises(ProblemError, match=r"dropout_seed is .*; it has to be a whole number from 0 to 2\^64 - 1"):
        Problem(dropout=0.1, dropout_seed=seed)


def test_a_problem_says_what_it_has():
    scores = {term.field: term.plain for term in Problem.TERMS}
    problem = Problem(mask="causal", **scores, dropout=0.1, dropout_seed=2**60, layout="bshd+3")
    assert problem.features == ("causal", *COMPILED_FEATURES, LAYOUT)
    assert problem.build_key == ("float32", 64, *COMPILED_FEATURES, LAYOUT, 4)  # rows lie 67 x 4 bytes apart
    assert ", sinks, dropout 0.1016 (seed 1152921504606846976), layout bshd+3, scale 0.125" in problem.headline
    assert Problem.from_fields(json.loads(json.dumps(problem.to_fields()))) == problem
    assert "dropout" not in Problem().headline and "dropout" not in Problem(dropout_seed=3).features
    assert not {"dropout", "dropout_seed"} & set(Problem().to_short_fields())
    assert problem.compulsory_bytes == dataclasses.replace(problem, dropout=0.0).compulsory_bytes


def test_cases_lose_it_after_tiles_and_heads():
    from harness.model.cases.build import Builds

    operation = operation_named("attention")
    build = dataclasses.replace(BUILDS[0], features=("sinks", "dropout"))
    problem = dataclasses.replace(build.plain_problem, dropout_seed=2**40)
    assert (problem.dropout, problem.sinks) == (0.5, True)
    case, builds = Case(problem), Builds((build,))
    assert operation.peculiarities(case, (1, 1))[-2:] == ["sinks", "dropout 0.5"]
    assert Case.from_json(case.to_json()) == case
    tried = list(operation.simpler(case, builds))
    without = [c for c in tried if c.problem.compiled_features != problem.compiled_features]
    assert [c.problem.compiled_features for c in without[:2]] == [("dropout",), ("sinks",)]
    assert without[0].problem.dropout_seed == 2**40 and without[1].problem.dropout_seed == 0
    assert all(operation.size(c, builds) < operation.size(case, builds) for c in without[:2])
    assert any(c.problem == dataclasses.replace(problem, dropout_seed=0) for c in tried)


def test_the_order_of_sums_is_asked_where_nothing_drops_out():
    with pytest.raises(UsageError, match="leave out --sinks and --dropout"):
        operation_named("attention").ordered_sums(Problem(sinks=True, dropout=0.5), lambda *a: {}, {})


def test_an_answer_that_is_not_scaled_is_named():
    hints = operation_named("attention").hints(Problem(dropout=0.25), "O")
    assert "1 / (1 - P)" in hints.factors[0.75]
