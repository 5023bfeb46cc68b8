"""An additive bias: its axes, how it is drawn, what -inf and NaN in it mean, and its share of the budget."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from attention_answers import hold
from attention_model import NUMERICS, online_softmax
from trials import trial_of

from harness.execution.judging.accuracy import Accuracy
from harness.model.cases.build import Builds
from harness.model.cases.case import Case, Edit
from harness.model.cases.regime import LARGEST_DRAWN_BYTES
from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_input_parts, draw_inputs, operation_named
from harness.operations.attention import bias as bias_module
from harness.operations.attention.bias import AXES, axes_of_array, parse_axes
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.cases.build import AttentionBuild
from harness.operations.attention.cases.case_values import one_edit
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.needed_bytes import needed_read_bytes
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.operations.attention.properties import PROPERTIES
from harness.support.errors import ProblemError, UsageError

pytestmark = pytest.mark.compiles(False)

f32 = np.float32
Arrays = dict[str, np.ndarray]
SUBSETS = [chosen for n in (1, 2, 3) for chosen in itertools.combinations(AXES, n)]
SMALL = Problem(batch=2, heads=4, kv_heads=2, q_len=12, kv_len=20, head_dim=8, bias=AXES)
STRICT = NUMERICS[False]


def judged(problem: Problem, inputs: Arrays, outputs: Arrays, numerics: Numerics = STRICT) -> Accuracy:
    answer = attention(problem, inputs)
    return hold(outputs, answer, error_budget(problem, inputs, answer, numerics))


# --- The problem -----------------------------------------------------------------------------------------------------


def test_axes_are_read_in_any_order():
    for text in ("kv_len,heads", "heads+kv_len", " heads , kv_len "):
        assert parse_axes(text) == ("heads", "kv_len")
    assert parse_axes("none") is None
    assert Problem(bias=["kv_len"]) == Problem(bias="kv_len")


@pytest.mark.parametrize("value", ["rows", "", "heads,heads", "heads,", (), True, 3, (1,), {"heads": "x", "batch": 1}])
def test_a_bias_varies_over_known_axes(value: object):
    with pytest.raises(ProblemError, match="list the axes that it varies over: one or more of heads, q_len, kv_len"):
        Problem(bias=value)


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_shape_and_strides_are_those_of_the_axes(axes: tuple[str, ...]):
    problem = dataclasses.replace(SMALL, bias=axes)
    inputs = draw_inputs(problem, "normal", 0)
    bias = inputs["bias"]
    assert bias.dtype == f32 and bias.shape == problem.bias_shape
    assert bias.shape == tuple(getattr(problem, axis) if axis in axes else 1 for axis in AXES)
    whole = np.broadcast_to(bias, (4, 12, 20))
    assert tuple(stride // 4 for stride in whole.strides) == problem.bias_strides
    assert axes_of_array(bias) == axes
    assert problem.compulsory_read_bytes == dataclasses.replace(SMALL, bias=None).compulsory_read_bytes + bias.nbytes


def test_a_problem_says_what_it_has():
    problem = Problem(mask="causal", softcap=2.0, alibi=True, bias="heads,kv_len", sinks=True)
    assert problem.features == ("causal", "softcap", "alibi", "bias", "sinks")
    assert problem.build_key == ("float32", 64, "softcap", "alibi", "bias", "sinks")
    assert ", ALiBi, bias (heads, kv_len), sinks, scale" in problem.headline
    assert problem.to_fields()["bias"] == "heads,kv_len"
    assert Problem.from_fields(json.loads(json.dumps(problem.to_fields()))) == problem
    assert "bias" not in Problem().to_short_fields() and Problem().bias_shape == ()
    assert [tensor.name for tensor in problem.inputs] == ["Q", "K", "V", "slopes", "bias", "sinks"]
    assert problem.size_class != dataclasses.replace(problem, bias=AXES).size_class
    assert operation_named("attention").field_in_words(problem, "bias") == ["bias (heads, kv_len)"]


def test_orders_of_sums_have_no_bias():
    with pytest.raises(UsageError, match="leave out --bias"):
        operation_named("attention").ordered_sums(Problem(bias="kv_len"), lambda *a: {}, {})


# --- Inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", REGIMES)
def test_queries_keys_and_values_are_those_without(regime: str):
    plain = dataclasses.replace(SMALL, bias=None)
    before, after = draw_inputs(plain, regime, 7), draw_inputs(dataclasses.replace(SMALL, sinks=True), regime, 7)
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in "QKV")
    assert {*after} == {"Q", "K", "V", "bias", "sinks"} and not np.isnan(after["sinks"]).any()
    assert not np.isnan(after["bias"]).any() and not np.isposinf(after["bias"]).any()
    assert np.isneginf(after["bias"]).any() == (regime in ("exact", "non-finite"))


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_regimes_are_what_they_say_with_a_bias(axes: tuple[str, ...]):
    problem = Problem(heads=2, q_len=16, kv_len=64, bias=axes, dtype="float16")

    def scores(regime: str) -> np.ndarray:
        inputs = {name: x.astype(np.float64) for name, x in draw_inputs(problem, regime, 3).items()}
        return problem.tau * (inputs["Q"] @ inputs["K"].mT) + inputs["bias"]

    assert scores("uniform").min() > 0
    assert np.abs(scores("overflow")).max() < 65504
    negative, far = scores("negative"), scores("far-negative")
    assert -510 < negative.min() and negative.max() < -104
    assert -65504 < far.min() and far.max() < -50_000
    assert np.allclose(np.ptp(scores("constant"), axis=-1), 0, atol=1e-6)
    assert (np.diff(scores("rising")) > 0).all() and (np.diff(scores("falling")) < 0).all()
    needle = np.sort(scores("needle"), axis=-1)
    assert (needle[..., -1] - needle[..., -2] > 30).all()
    repeated = scores("repeated")
    assert ((repeated == repeated.max(axis=-1, keepdims=True)).sum(axis=-1) > 1).mean() > 0.5
    if "kv_len" in axes:
        hidden = np.isneginf(scores("non-finite"))
        assert 0.1 < hidden.mean() < 0.5
        assert hidden.all(axis=-1).any() == ("q_len" in axes)
        shown = np.count_nonzero(np.isfinite(scores("exact")), axis=-1)
        assert (shown & (shown - 1) == 0).all() and len(np.unique(shown)) > 1 - ("q_len" not in axes)


@pytest.mark.parametrize("level", [-1000.0, 1000.0])
def test_sinks_are_near_the_sums(level: float):
    problem = Problem(heads=18, q_len=2, kv_len=64, head_dim=16, bias=("heads", "kv_len"), sinks=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bias_module, "_standard_normal", lambda rng, problem: np.full(problem.bias_shape, level))
        inputs = draw_inputs(problem, "normal", 0)
    weight = np.exp(inputs["sinks"] - attention(problem, inputs)["lse"][0, :, 1])
    assert ((0.1 < weight) & (weight < 0.9)).sum() > 3


@pytest.mark.parametrize("mask", ["causal", "window:3,0", "blocks:4x4,3,heads", "documents:9+11/4+6+10"])
@pytest.mark.parametrize("axes", [AXES, ("q_len", "kv_len"), ("kv_len",), ("heads",)], ids=str)
def test_nan_is_drawn_exactly_where_the_mask_hides_all(mask: str, axes: tuple[str, ...]):
    problem = dataclasses.replace(SMALL, mask=Problem(mask=mask, q_len=12, kv_len=20, batch=2, heads=4).mask, bias=axes)
    bias = draw_inputs(problem, "non-finite", 0)["bias"]
    whole = np.broadcast_to(bias, (4, 12, 20))
    shown = np.stack([[problem.seen(b % problem.mask.sequences, h) for h in range(4)] for b in range(2)]).any(axis=0)
    poisoned = np.isnan(whole) | np.isposinf(whole)
    assert not (poisoned & shown).any()
    if axes == AXES:
        assert np.array_equal(poisoned, ~shown) and poisoned.any()


def test_a_large_bias_is_drawn_when_it_is_used():
    problem = Problem(heads=32, q_len=2048, kv_len=2048, head_dim=8, bias=AXES)
    parts = draw_input_parts(problem, "normal", 0)
    assert parts["bias"].shape == problem.bias_shape and not isinstance(parts["bias"], np.ndarray)
    assert problem.compulsory_read_bytes > LARGEST_DRAWN_BYTES


# --- The answer ------------------------------------------------------------------------------------------------------


def test_a_row_of_which_a_bias_hides_all_keys_has_no_answer():
    inputs = draw_inputs(SMALL, "normal", 0)
    inputs["bias"][1, 3] = -np.inf
    answer = attention(SMALL, inputs)
    assert np.all(answer["O"][:, 1, 3] == 0) and np.all(answer["lse"][:, 1, 3] == -np.inf)
    budget = error_budget(SMALL, inputs, answer)
    assert np.all(budget["O"].allowed[:, 1, 3] == 0) and np.all(budget["lse"].allowed[:, 1, 3] == 0)
    outputs = online_softmax(SMALL, inputs)
    assert judged(SMALL, inputs, outputs).passed
    outputs["O"][0, 1, 3, 0] = np.nan
    assert not judged(SMALL, inputs, outputs).passed
    sinks = dataclasses.replace(SMALL, sinks=True)
    beside = attention(sinks, inputs | {"sinks": np.full(4, 1.5, f32)})
    assert np.all(beside["O"][:, 1, 3] == 0) and np.all(beside["lse"][:, 1, 3] == 1.5)


@pytest.mark.parametrize("fields", [{}, {"sinks": True}, {"dropout": 0.5}, {"mask": "causal"}], ids=str)
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(fields: dict[str, object]):
    plain = Problem(heads=2, q_len=9, kv_len=9, head_dim=4, **fields)
    masked = dataclasses.replace(plain, mask=plain.mask & Problem(mask="window:3,2").mask)
    biased = dataclasses.replace(plain, bias=("q_len", "kv_len"))
    inputs = draw_inputs(masked, "normal", 2)
    inputs["bias"] = np.where(masked.seen(), f32(0), f32(-np.inf))[None]
    expected, found = attention(masked, inputs), attention(biased, inputs)
    for name in ("O", "lse"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-14)
    budgets = [error_budget(p, inputs, expected, STRICT)["O"].allowed for p in (masked, biased)]
    np.testing.assert_allclose(budgets[0], budgets[1], rtol=1e-3, atol=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("fields", [{}, {"alibi": True, "softcap": 3.0}, {"dtype": "float16"}], ids=str)
def test_a_bias_behind_the_mask_has_no_effect(value: float, fields: dict[str, object]):
    problem = dataclasses.replace(SMALL, **{"mask": Problem(mask="causal+window:5").mask, **fields})
    inputs = draw_inputs(problem, "normal", 1)
    poisoned = {**inputs, "bias": np.where(problem.seen(), inputs["bias"], f32(value))}
    for numerics in (Numerics(), Numerics(factors="e4m3")):
        clean, dirty = (attention(problem, each) for each in (inputs, poisoned))
        budgets = [error_budget(problem, i, a, numerics) for i, a in ((inputs, clean), (poisoned, dirty))]
        for name in ("O", "lse"):
            assert np.array_equal(clean[name], dirty[name])
            for tier in ("allowed", "expected"):
                assert np.array_equal(*(getattr(budget[name], tier) for budget in budgets))
            assert np.isfinite(budgets[0][name].allowed).all()


def test_a_nan_that_a_row_sees_reaches_it_and_no_other():
    inputs = draw_inputs(SMALL, "normal", 1)
    inputs["bias"][2, 5, 7] = np.nan
    O = attention(SMALL, inputs)["O"]
    assert np.isnan(O[:, 2, 5]).all() and np.isfinite(np.delete(O[:, 2], 5, axis=1)).all()
    outputs = online_softmax(SMALL, inputs)
    assert judged(SMALL, inputs, outputs).passed
    outputs["O"][0, 2, 5] = 0
    assert not judged(SMALL, inputs, outputs).passed


@pytest.mark.parametrize("array", ["K", "V"])
def test_any_result_is_accepted_where_minus_infinity_meets_nan(array: str):
    problem = dataclasses.replace(SMALL, bias=("q_len", "kv_len"))
    inputs = draw_inputs(problem, "normal", 1)
    inputs["bias"][0, 4, 7] = -np.inf
    inputs[array][0, 0, 7, 3] = np.nan
    answer = attention(problem, inputs)
    unconstrained = np.isinf(error_budget(problem, inputs, answer)["O"].allowed)
    columns = slice(3, 4) if array == "V" else slice(None)  # of the two query heads of key/value head 0
    assert unconstrained[0, :2, 4, columns].all()
    assert np.count_nonzero(unconstrained) == 2 * (1 if array == "V" else 8)
    for O_of_row in (np.nan, 0.25):
        outputs = online_softmax(problem, inputs)
        outputs["O"][0, :2, 4, columns] = O_of_row
        assert judged(problem, inputs, outputs).passed


def test_finite_numbers_in_place_of_minus_infinity_are_judged():
    inputs = draw_inputs(SMALL, "normal", 1)
    inputs["bias"][..., 11:] = -1e9
    inputs["bias"][0, 0] = -1e9
    inputs["bias"][1, 1] = np.finfo(f32).min
    result = judged(SMALL, inputs, online_softmax(SMALL, inputs))
    assert result.passed and not result.suspicious
    answer = attention(SMALL, inputs)
    assert np.isfinite(answer["O"]).all()
    allowed = error_budget(SMALL, inputs, answer, STRICT)["O"].allowed
    assert np.isinf(allowed[:, 1, 1]).all(), "times log2 e, all scores of the row may be -inf"
    assert allowed[:, 2:].max() < 1e-4


@pytest.mark.parametrize("axes", SUBSETS, ids=str)
def test_a_part_has_the_answer_that_it_has_in_the_whole(axes: tuple[str, ...]):
    problem = dataclasses.replace(SMALL, bias=axes)
    inputs = draw_inputs(problem, "normal", 0)
    where = (slice(1, 2), slice(2, 3), slice(5, 8))
    part = attention(problem, inputs, Part(where, "rows of a head"))
    np.testing.assert_allclose(part["O"], attention(problem, inputs)["O"][where], rtol=1e-13)


# --- What is exact, and what is needed -------------------------------------------------------------------------------


def test_a_bias_of_0_leaves_exact_answers():
    problem = Problem(heads=2, q_len=8, kv_len=24, head_dim=4, bias=AXES)
    inputs = draw_inputs(problem, "exact", 0)
    budget = error_budget(problem, inputs, attention(problem, inputs), STRICT)["O"].allowed
    assert np.all(budget == 0)
    inputs["bias"][0, 0, 0] = 0.5
    other = error_budget(problem, inputs, attention(problem, inputs), STRICT)["O"].allowed
    several = np.count_nonzero(np.isfinite(inputs["bias"][0, 0])) > 1
    assert several and np.all(other[0, 0, 0] > 0) and np.all(other[0, 1] == 0)


def test_what_needs_to_be_read_is_never_too_much():
    inputs = draw_inputs(SMALL, "uniform", 0)
    plain = dataclasses.replace(SMALL, bias=None)
    needed = needed_read_bytes(plain, inputs)
    assert needed > 0 and needed_read_bytes(SMALL, inputs) == needed
    for value in (-np.inf, np.nan, 1e9):
        inputs["bias"][0, 0, 3] = value
        assert needed_read_bytes(SMALL, inputs) == 0


# --- Properties and cases --------------------------------------------------------------------------------------------


def test_every_row_may_be_0_though_no_value_is():
    problem = dataclasses.replace(SMALL, bias=("q_len",))
    inputs = draw_inputs(problem, "negative", 1)  # values from 1 to 2
    inputs["bias"][0, 3] = -np.inf
    trial = trial_of(problem, inputs, online_softmax, STRICT)
    assert np.all(trial.outputs["O"][:, :, 3] == 0)
    assert all(each.violation(trial) is None for each in PROPERTIES.values())


def test_keys_in_another_order_take_their_biases_along():
    def rising_bias(problem: Problem, inputs: Arrays) -> Arrays:
        """Reads the biases of another order of keys."""
        return online_softmax(problem, inputs | {"bias": np.sort(inputs["bias"], axis=-1)})

    inputs = draw_inputs(SMALL, "normal", 1)
    reasons = [
        PROPERTIES["key-order"].violation(trial_of(SMALL, inputs, run, STRICT)) for run in (online_softmax, rising_bias)
    ]
    assert reasons[0] is None and "keys in another order" in (reasons[1] or "")


def test_mistakes_are_known():
    inputs = draw_inputs(SMALL, "normal", 0)
    names = [name for name, _ in operation_named("attention").known_mistakes(SMALL, inputs, None)]
    expected = {"without the bias", "with the bias subtracted", "with the bias added before the scale"}
    expected |= {f"with the bias of the next {what}" for what in ("head", "row", "key")}
    assert {f"the answer {name}" for name in expected} <= {*names}
    for regime in ("exact", "non-finite"):  # no warnings of -inf times 0
        for scale in (0.0, -1.0):
            problem = dataclasses.replace(SMALL, scale=scale, mask=Problem(mask="causal").mask)
            list(operation_named("attention").known_mistakes(problem, draw_inputs(problem, regime, 0), None))


def test_cases_keep_their_axes_and_lose_them_one_by_one():
    operation = operation_named("attention")
    build = AttentionBuild("float32", 16, features=("bias", "sinks"))
    problem = dataclasses.replace(build.plain_problem, bias=("heads", "kv_len"), heads=2)
    case = Case(problem, edits=(Edit("bias", (1, 0, 100), -math.inf), Edit("sinks", (0,), 2.0)))
    assert Case.from_json(case.to_json()) == case and "bias" in case.to_json()
    builds = Builds((AttentionBuild("float32", 20), build))
    assert operation.peculiarities(case, (1, 1))[-2:] == ["bias (heads, kv_len)", "sinks"]
    assert operation.leaves_regime(case)
    bare = dataclasses.replace(case, edits=())
    fewer = [c for c in operation.simpler(bare, builds) if c.problem.bias not in (None, problem.bias)]
    assert all(operation.size(c, builds) < operation.size(bare, builds) for c in fewer[:2])
    tried = list(operation.simpler(case, builds))
    fewer = [c for c in tried if c.problem.bias not in (None, problem.bias)]
    assert [c.problem.bias for c in fewer[:2]] == [("kv_len",), ("heads",)]
    assert [len(c.edits) for c in fewer[:2]] == [1, 1]  # those that lie outside are gone
    without = next(c for c in tried if c.problem.bias is None)
    assert [edit.array for edit in without.edits] == ["sinks"] and without.problem.sinks


def test_edits_put_nan_behind_the_mask_and_hide_keys():
    problem = Problem(heads=2, q_len=60, kv_len=80, head_dim=4, mask="documents:30+50", bias=("q_len", "kv_len"))
    rng = np.random.default_rng(0)

    def pick(among):
        return among[rng.integers(len(among))]

    edits = [edit for edit in (one_edit(pick, problem) for _ in range(4000)) if edit.array == "bias"]
    assert len(edits) > 200 and {-math.inf, -1e9} < {edit.value for edit in edits}
    seen = problem.seen()
    hidden_nan = [edit for edit in edits if math.isnan(edit.value) and not seen[edit.index[1], edit.index[2]]]
    assert len(hidden_nan) > 20
    beside = [edit for edit in hidden_nan if seen[edit.index[1], max(0, edit.index[2] - 1) : edit.index[2] + 2].any()]
    assert len(beside) > len(hidden_nan) / 2, "next to a key that the row sees"
