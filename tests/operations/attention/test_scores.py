"""What scores become before the softmax, and sinks: the rule, its inputs, its budget, and what is said of it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from attention_answers import hold

from harness.model.cases.case import Case, Edit
from harness.model.numerics import Numerics
from harness.model.operation import draw_inputs, operation_named
from harness.operations.attention.bias import AXES
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.cases.build import AttentionBuild, feature_sets
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.needed_bytes import needed_read_bytes
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import COMPILED_FEATURES, Problem
from harness.operations.attention.score_terms import alibi_slopes
from harness.support.errors import PluginError, ProblemError, UsageError

pytestmark = pytest.mark.compiles(False)

ALL = {"softcap": 2.0, "alibi": True, "sinks": True}
SMALL = {"batch": 2, "heads": 6, "kv_heads": 2, "q_len": 5, "kv_len": 9, "head_dim": 4}
f32 = np.float32


def one_by_one(problem: Problem, inputs: dict[str, np.ndarray], b: int, h: int, i: int) -> tuple[np.ndarray, float]:
    """O and lse of one row, logit by logit."""
    logits, values = [], []
    for j in range(problem.kv_len):
        place = i + problem.kv_len - problem.q_len
        if problem.causal and j > place:
            continue
        q, k, v = inputs["Q"][b, h, i], inputs["K"][b, h // problem.group, j], inputs["V"][b, h // problem.group, j]
        s = problem.tau * sum(float(x) * float(y) for x, y in zip(q, k))
        if problem.softcap is not None:
            s = problem.softcap * math.tanh(s / problem.softcap)
        if problem.alibi:
            s -= float(inputs["slopes"][h]) * abs(place - j)
        if problem.bias is not None:
            s += float(inputs["bias"][tuple(n if axis in problem.bias else 0 for n, axis in zip((h, i, j), AXES))])
        logits.append(s)
        values.append(v.astype(np.float64))
    if problem.sinks:
        logits.append(float(inputs["sinks"][h]))
        values.append(np.zeros(problem.head_dim))
    largest = max(logits, default=-math.inf)
    if largest == -math.inf:
        return np.zeros(problem.head_dim), -math.inf
    weights = [math.exp(s - largest) for s in logits]
    O = sum(w * v for w, v in zip(weights, values)) / sum(weights)
    return O, largest + math.log(sum(weights))


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize(
    "fields",
    [
        {"softcap": 0.5}, {"alibi": True}, {"sinks": True}, ALL, {"bias": "heads,q_len,kv_len"}, {"bias": "heads"},
        {"bias": "q_len"}, {"bias": "kv_len"}, {"bias": "heads,kv_len", "sinks": True}, {**ALL, "bias": "q_len,kv_len"},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("lengths", [(5, 9), (9, 4)], ids=str)
def test_the_oracle_gives_what_the_formula_does(lengths: tuple[int, int], fields: dict[str, object], mask: str):
    q_len, kv_len = lengths
    problem = Problem(**(SMALL | fields | {"mask": mask, "q_len": q_len, "kv_len": kv_len}))
    inputs = draw_inputs(problem, "normal", 3)
    answer = attention(problem, inputs)
    for b, h, i in np.ndindex(problem.batch, problem.heads, problem.q_len):
        O, lse = one_by_one(problem, inputs, b, h, i)
        np.testing.assert_allclose(answer["O"][b, h, i], O, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(answer["lse"][b, h, i], lse, rtol=1e-12)


def test_a_row_without_keys_has_the_sink_for_its_lse_and_0_for_its_answer():
    problem = Problem(heads=3, q_len=4, kv_len=2, head_dim=4, mask="causal", sinks=True)
    inputs = draw_inputs(problem, "normal", 0) | {"sinks": np.array([1.5, -np.inf, -300.0], f32)}
    answer = attention(problem, inputs)
    assert np.array_equal(answer["O"][0, :, :2], np.zeros((3, 2, 4)))
    assert np.array_equal(answer["lse"][0, :, 0], [1.5, -np.inf, -300.0])
    budget = error_budget(problem, inputs, answer)
    assert np.all(budget["O"].allowed[0, :, :2] == 0)
    assert budget["lse"].allowed[0, 1, 0] == 0 and 0 < budget["lse"].allowed[0, 0, 0] < 1e-5


@pytest.mark.parametrize("sink", [np.nan, np.inf])
def test_nothing_is_asked_of_a_row_without_keys_whose_sink_is_no_number(sink: float):
    problem = Problem(heads=2, q_len=4, kv_len=2, head_dim=4, mask="causal", sinks=True)
    inputs = draw_inputs(problem, "normal", 0) | {"sinks": np.array([0.5, sink], f32)}
    answer = attention(problem, inputs)
    budget = error_budget(problem, inputs, answer)
    for O_of_row in (0.0, np.nan):
        given = answer["O"].astype(f32)
        given[0, 1, :2] = O_of_row
        assert hold({"O": given}, answer, budget).passed
        given[0, 0, 0] = O_of_row
        assert hold({"O": given}, answer, budget).passed == (O_of_row == 0)


def test_a_sink_of_minus_infinity_is_none():
    plain = Problem(heads=2, q_len=7, kv_len=7, head_dim=8, mask="causal")
    problem = dataclasses.replace(plain, sinks=True)
    inputs = draw_inputs(plain, "normal", 0)
    without = attention(plain, inputs)
    beside = attention(problem, inputs | {"sinks": np.full(2, -np.inf, f32)})
    np.testing.assert_allclose(beside["O"], without["O"], rtol=1e-14)
    np.testing.assert_allclose(beside["lse"], without["lse"], rtol=1e-14)


def test_slopes_are_the_papers():
    # Section 3 has 8 heads, and 16; what it says of 12 is in its code.
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]
    assert np.allclose(alibi_slopes(16)[:2], [2**-0.5, 2**-1])
    assert np.array_equal(alibi_slopes(12), [*alibi_slopes(8), *alibi_slopes(16)[0:8:2]])
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert np.array_equal(alibi_slopes(3), [*alibi_slopes(2), alibi_slopes(4)[0]])


@pytest.mark.parametrize("regime", REGIMES)
def test_queries_keys_and_values_are_those_without(regime: str):
    plain = Problem(**SMALL)
    problem = Problem(**(SMALL | ALL))
    before, after = draw_inputs(plain, regime, 7), draw_inputs(problem, regime, 7)
    assert set(after) == {"Q", "K", "V", "slopes", "sinks"}
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in "QKV")
    assert after["slopes"].dtype == after["sinks"].dtype == f32
    assert not np.isnan(after["sinks"]).any()


def test_some_sinks_weigh_all_some_half_some_nothing():
    problem = Problem(heads=18, q_len=1, kv_len=64, head_dim=16, sinks=True)
    inputs = draw_inputs(problem, "normal", 0)
    weight = np.exp(inputs["sinks"] - attention(problem, inputs)["lse"][0, :, 0])
    assert (weight > 1 - 1e-9).any() and (weight == 0).any() and (abs(weight - 0.5) < 1e-5).any()


@pytest.mark.parametrize("kind", ["fast", "accurate"])
def test_tanh_with_its_largest_error_nearly_exhausts_the_budget(kind: str):
    """Right kernels reach a good part of what is expected; four times that error is suspicious."""
    problem = Problem(heads=2, q_len=16, kv_len=4, head_dim=8, softcap=20.0, scale=4.0)
    inputs = draw_inputs(problem, "normal", 1)
    answer = attention(problem, inputs)
    numerics = Numerics(scores="float32", weights="float32", functions="accurate", sums="nearest",
                        one_score=True, divides_last=True, tanh=kind)  # fmt: skip
    off = {"fast": 2.0**-11, "accurate": 2.0**-22}[kind]

    def run(error: float) -> dict[str, np.ndarray]:
        q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
        tangent = np.tanh(problem.tau * (q @ k.mT) / 20.0)
        s = 20.0 * tangent * (1 + error * np.where(np.arange(4) % 2, 1, -1))
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        return {"O": (p @ v / p.sum(axis=-1, keepdims=True)).astype(f32)}

    budget = error_budget(problem, inputs, answer, numerics)
    right, wrong = (hold(run(error), answer, budget) for error in (off, 4 * off))
    assert right.passed and not right.suspicious
    assert right.error_over_expected > (0.5 if kind == "fast" else 0.05)
    assert kind == "accurate" or not wrong.passed or wrong.suspicious


def test_tanh_from_exponentials_is_within_the_default_budget():
    problem = Problem(heads=1, q_len=64, kv_len=64, head_dim=8, softcap=1e4, scale=1e-2)
    inputs = draw_inputs(problem, "normal", 1)
    answer = attention(problem, inputs)
    q, k, v = (inputs[name] for name in "QKV")
    E = np.exp(f32(2e-2 / 1e4) * (q @ k.mT))
    s = f32(1e4) * (f32(1) - f32(2) / (E + f32(1)))  # far from 2^-11 of the tangent
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    O = (p @ v / p.sum(axis=-1, keepdims=True)).astype(f32)
    assert hold({"O": O}, answer, error_budget(problem, inputs, answer)).passed
    exact = Numerics(functions="accurate", sums="nearest", tanh="accurate", scores="float32", weights="float32")
    assert not hold({"O": O}, answer, error_budget(problem, inputs, answer, exact)).passed


def test_scores_near_their_cap_are_surer_than_their_products():
    numerics = Numerics(scores="float32", weights="float32", sums="nearest", tanh="accurate", one_score=True)
    plain = Problem(heads=1, q_len=8, kv_len=32, head_dim=64)
    inputs = draw_inputs(plain, "hot", 1)
    budgets = [
        error_budget(problem, inputs, attention(problem, inputs), numerics)["O"].allowed.max()
        for problem in (plain, dataclasses.replace(plain, softcap=1.0))
    ]
    assert budgets[1] < 0.2 * budgets[0]


def test_an_even_share_with_a_sink_is_exact():
    # 15 keys and a sink, all of logit 0.
    problem = Problem(heads=1, q_len=3, kv_len=15, head_dim=8, sinks=True)
    inputs = draw_inputs(problem, "exact", 0) | {"sinks": np.zeros(1, f32)}
    numerics = Numerics(functions="accurate", sums="nearest", divides_last=True)
    answer = attention(problem, inputs)
    assert np.all(error_budget(problem, inputs, answer, numerics)["O"].allowed == 0)
    beside = inputs | {"sinks": np.full(1, -np.inf, f32)}
    assert np.all(error_budget(problem, beside, attention(problem, beside), numerics)["O"].allowed > 0)


def test_a_key_that_is_not_finite_has_a_finite_score_under_a_cap():
    problem = Problem(heads=1, q_len=2, kv_len=4, head_dim=2, softcap=3.0)
    inputs = draw_inputs(problem, "uniform", 0)
    inputs["K"][0, 0, 1] = np.inf
    answer = attention(problem, inputs)
    assert np.isfinite(answer["O"]).all() and np.isfinite(error_budget(problem, inputs, answer)["O"].allowed).all()


def test_what_needs_to_be_read_is_never_too_much():
    plain = Problem(heads=2, q_len=4, kv_len=8, head_dim=8)
    inputs = draw_inputs(plain, "uniform", 0)
    needed = needed_read_bytes(plain, inputs)
    assert needed > 0
    assert needed_read_bytes(dataclasses.replace(plain, softcap=1.0), inputs) == 0
    sinks = dataclasses.replace(plain, sinks=True)
    assert needed_read_bytes(sinks, inputs | {"sinks": np.full(2, -np.inf, f32)}) == needed
    of_v = plain.kv_len * plain.head_dim * plain.heads * 4
    assert needed_read_bytes(sinks, inputs | {"sinks": np.full(2, 1e4, f32)}) == needed - of_v


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "30"])
def test_a_cap_is_positive(value: object):
    with pytest.raises(ProblemError, match=r"softcap is .*; it has to be a positive number, and is left out where"):
        Problem(softcap=value)


def test_flags_are_true_or_false():
    with pytest.raises(ProblemError, match="sinks is 1; it has to be true or false"):
        Problem(sinks=1)


def test_a_problem_says_what_it_has():
    problem = Problem(**ALL, mask="causal")
    assert problem.features == ("causal", "softcap", "alibi", "sinks")
    assert problem.build_key == ("float32", 64, "softcap", "alibi", "sinks")
    assert ", causal, softcap 2, ALiBi, sinks, scale 0.125" in problem.headline
    assert Problem.from_fields(json.loads(json.dumps(problem.to_fields()))) == problem
    assert problem.to_short_fields().items() >= ALL.items()
    assert not {"softcap", "alibi", "sinks"} & set(Problem().to_short_fields())
    assert problem.compulsory_read_bytes == Problem(mask="causal").compulsory_read_bytes + 2 * 2 * 4
    assert problem.flops == Problem(mask="causal").flops


def test_cases_keep_what_they_have_and_lose_it_after_tiles_and_heads():
    build = AttentionBuild("float32", 16, features=("softcap", "alibi", "sinks"))
    operation = operation_named("attention")
    problem = dataclasses.replace(build.plain_problem, softcap=7.0, heads=2)
    case = Case(problem, edits=(Edit("sinks", (0,), 2.0), Edit("V", (0, 0, 0, 0), 1.0)))
    assert Case.from_json(case.to_json()) == case
    from harness.model.cases.build import Builds

    builds = Builds((AttentionBuild("float32", 20), build))
    before = list(
        itertools.takewhile(lambda c: c.problem.build_key == problem.build_key, operation.simpler(case, builds))
    )
    assert {c.problem.q_len < 128 for c in before} == {c.problem.heads < 2 for c in before} == {False, True}
    first = next(c for c in operation.simpler(case, builds) if c.problem.build_key != problem.build_key)
    assert first.problem.score_features == ("alibi", "sinks") and first.edits == case.edits
    assert operation.size(first, builds) < operation.size(case, builds)
    bare = next(c for c in operation.simpler(case, builds) if not c.problem.sinks)
    assert [edit.array for edit in bare.edits] == ["V"]
    plainer = next(c for c in operation.simpler(case, builds) if c.problem.head_dim == 20)
    assert plainer.problem.score_features == ()
    assert operation.peculiarities(case, (1, 1))[-3:] == ["softcap 7", "ALiBi", "sinks"]


def test_a_build_has_the_features_of_its_place_that_a_variant_takes():
    build = AttentionBuild("float32", 16)
    takes = ("causal", "sinks", "softcap")
    sets = [build.with_features(takes, place).features for place in range(5)]
    assert sets == [(), ("softcap", "sinks"), ("softcap",), ("sinks",), ()]
    other = dataclasses.replace(build, feature_order=tuple(reversed(COMPILED_FEATURES)))
    assert [other.with_features(takes, place).features for place in range(3)] == [(), ("softcap", "sinks"), ("sinks",)]
    everything = build.with_features(COMPILED_FEATURES, 1)
    assert (
        everything.with_fewer_features[-1].features == ()
        and len(everything.with_fewer_features) == 2 ** len(COMPILED_FEATURES) - 1
    )
    assert len(feature_sets(COMPILED_FEATURES)) == 2 ** len(COMPILED_FEATURES)


def test_the_order_of_sums_is_asked_of_plain_scores():
    with pytest.raises(UsageError, match="leave out --softcap and --sinks"):
        operation_named("attention").ordered_sums(Problem(softcap=1.0, sinks=True), lambda *a: {}, {})


def test_numerics_name_the_tangent():
    with pytest.raises(PluginError, match="tanh='exact'; choose fast or accurate"):
        Numerics(tanh="exact")
    operation = operation_named("attention")
    assert "tanh" in operation.numerics_used(Problem(softcap=1.0)) and "tanh" not in operation.numerics_used(Problem())
