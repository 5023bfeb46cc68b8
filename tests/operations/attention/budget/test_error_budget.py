"""The budget from both sides: nothing right is beyond it, and what is right comes close to it."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from attention_answers import hold, products_in_order
from attention_model import NUMERICS, online_softmax
from lanes import exhaustive_unless

from harness.execution.judging.accuracy import Accuracy
from harness.model.arithmetic.rounding import U
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.numerics import Numerics
from harness.model.operation import Tolerance, draw_inputs
from harness.model.reference import Reference
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.budget.rounding_sizes import Roundings
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.oracle import attention
from harness.operations.attention.problem import Problem
from harness.support.errors import PluginError

SHAPES = (
    {},
    {"mask": "causal", "q_len": 90},
    {"heads": 4, "kv_heads": 1},
    {"q_len": 33, "kv_len": 7, "mask": "causal"},
    {"head_dim": 1, "kv_len": 1},
    {"head_dim": 128, "kv_len": 300, "scale": -0.3},
)
FA1 = dataclasses.replace(NUMERICS[False], divides_last=False)
DECLARED = {"nothing": Numerics(), "float32 throughout": NUMERICS[False], "S and P stored": NUMERICS[True], "fa1": FA1}
FINITE_REGIMES = [name for name in REGIMES if name != "non-finite"]


@functools.cache
def asked(problem: Problem, regime: str, seed: int = 1) -> tuple[dict[str, np.ndarray], Reference]:
    inputs = draw_inputs(problem, regime, seed)
    return inputs, attention(problem, inputs)


@functools.cache
def budget_of(problem: Problem, regime: str, numerics: Numerics) -> dict[str, Tolerance]:
    return error_budget(problem, *asked(problem, regime), numerics)


def problem_with(dtype: str, fields: dict[str, object]) -> Problem:
    return Problem(**({"heads": 1, "q_len": 64, "kv_len": 70, "dtype": dtype} | fields))


def judge(problem: Problem, regime: str, numerics: Numerics, **model: object) -> Accuracy:
    inputs, reference = asked(problem, regime)
    return hold(online_softmax(problem, inputs, **model), reference, budget_of(problem, regime, numerics))


@pytest.mark.parametrize("odd", [0.0, 1.0, 3.0, -1e3, 1e5])
def test_products_that_are_equal_but_for_a_few_are_not_taken_for_random(odd: float):
    problem = Problem(heads=1, q_len=64, kv_len=200, head_dim=160, dtype="float32")
    inputs = {name: array.copy() for name, array in draw_inputs(problem, "rising", 1).items()}
    inputs["Q"][..., 5] = odd
    budget = error_budget(problem, inputs, reference := attention(problem, inputs), NUMERICS[False])
    scores = products_in_order(inputs["Q"][0, 0], inputs["K"][0, 0]).astype(np.float64) * problem.tau
    largest = scores.max(axis=-1)
    lse = largest + np.log(np.exp(scores - largest[:, None]).sum(axis=-1))
    assert (np.abs(lse - reference["lse"][0, 0]) <= budget["lse"].expected[0, 0]).all()


def worst_kernel(
    problem: Problem, inputs: dict[str, np.ndarray], reference: Reference, numerics: Numerics, direction: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """O and lse, in float64, of a kernel whose every rounding is as large as it can be, up or down as `direction` says.

    `direction` is +1 or -1, of shape (batch, heads, q_len, kv_len): whether a key's weight comes out too large.
    """
    r = Roundings.of(problem, numerics)
    q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
    k, v = (np.repeat(x, problem.group, axis=1) for x in (k, v))
    up = direction

    # Each product of a score meets one rounding per step of its sum, and those of the scale.
    products = problem.tau * q[:, :, :, None, :] * k[:, :, None, :, :]
    steps = problem.head_dim + r.score_roundings
    away = np.sign(products) == up[..., None]
    s = np.sum(products * np.where(away, (1 + r.addition) ** steps, (1 - r.addition) ** steps), axis=-1)
    exact_s = np.sum(products, axis=-1)
    stored = s + up * (r.scores * np.abs(s) + r.scores_step)
    # The two sums see the same score, or one of them sees its opposite error.
    s_above = stored
    s_below = stored if numerics.one_score else exact_s - (s - exact_s) + (stored - s)

    seen = np.ones((problem.q_len, problem.kv_len), bool)
    if problem.causal:
        seen = np.tri(problem.q_len, problem.kv_len, problem.kv_len - problem.q_len, dtype=bool)
    n = seen.sum(axis=-1)[:, None]

    m = np.where(n == 0, 0.0, np.where(seen, s_above, -np.inf).max(axis=-1, keepdims=True))

    def weights(s: np.ndarray, up: np.ndarray, division: float) -> np.ndarray:
        log_error = r.argument * np.abs(m - s) + r.frame * (np.abs(s) + np.abs(m)) + r.exp + n * r.rescale + division
        log_error = log_error + n * np.log1p(r.addition)
        return np.exp(np.where(seen, s - m + up * log_error, -np.inf))

    above, below = weights(s_above, up, r.division), weights(s_below, -up, 0.0)
    above *= 1 + up * r.weights
    l = below.sum(axis=-1, keepdims=True)
    O = np.where(n == 0, 0.0, above @ v / np.where(l == 0, 1.0, l))
    lse = np.where(n == 0, -np.inf, m + np.log(np.where(l == 0, 1.0, l)))[..., 0]
    O += np.sign(O - reference["O"]) * (r.output * np.abs(O))
    return O, lse


@pytest.mark.parametrize("declared", DECLARED)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_no_roundings_exceed_what_is_proved_and_the_worst_come_close(dtype: str, declared: str):
    numerics = DECLARED[declared]
    closest = 0.0
    for fields in ({"kv_len": 40}, {"kv_len": 40, "mask": "causal", "q_len": 50}, {"kv_heads": 1, "kv_len": 5}):
        problem = Problem(**({"heads": 2, "q_len": 24, "head_dim": 16, "dtype": dtype} | fields))
        for regime in FINITE_REGIMES:
            inputs, reference = asked(problem, regime)
            budget = budget_of(problem, regime, numerics)
            v = np.repeat(inputs["V"].astype(np.float64), problem.group, axis=1)
            columns = (0, 7)
            # Everything that is above the answer weighs too much, everything below too little.
            far = [np.sign(v[:, :, None, :, column] - reference["O"][:, :, :, None, column]) for column in columns]
            ones = np.ones_like(far[0])
            for up in (*far, *(-each for each in far), ones, -ones):
                O, lse = worst_kernel(problem, inputs, reference, numerics, up)
                promised = (budget["O"].allowed > 0) & np.isfinite(budget["O"].allowed)
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratio = np.where(promised, np.abs(O - reference["O"]) / budget["O"].allowed, 0.0)
                    lse_ratio = np.where(
                        budget["lse"].allowed > 0, np.abs(lse - reference["lse"]) / budget["lse"].allowed, 0.0
                    )
                assert ratio.max() <= 1, (fields, regime)
                assert lse_ratio.max() <= 1, (fields, regime)
                closest = max(closest, ratio[..., columns].max())
    assert closest > 0.5


@pytest.mark.parametrize("dtype", exhaustive_unless(lambda dtype: dtype == "float16", NUMPY_DTYPES))
@pytest.mark.parametrize("regime", exhaustive_unless(lambda regime: regime in ("normal", "needle", "hot"), REGIMES))
def test_a_right_model_stays_within_what_is_expected(dtype: str, regime: str):
    for fields in SHAPES:
        problem = problem_with(dtype, fields)
        for tile, store_scores in ((1, False), (16, True), (64, False)):
            for numerics in (Numerics(), NUMERICS[store_scores]):
                accuracy = judge(problem, regime, numerics, tile=tile, store_scores=store_scores)
                assert accuracy.passed, (fields, tile, store_scores, numerics, accuracy.reason)
                assert not accuracy.suspicious, (fields, tile, store_scores, numerics, accuracy)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_a_right_model_stays_within_what_is_expected_in_a_thousand_draws(dtype: str):
    rng = np.random.default_rng(2)
    for seed in range(1000):
        q_len, kv_len, d = (int(x) for x in rng.integers(1, (20, 60, 40)))
        problem = Problem(
            heads=1, q_len=q_len, kv_len=kv_len, head_dim=d, dtype=dtype, mask="causal" if bool(seed % 2) else "none"
        )
        regime = list(REGIMES)[seed % len(REGIMES)]
        inputs = draw_inputs(problem, regime, seed)
        reference = attention(problem, inputs)
        outputs = online_softmax(problem, inputs, store_scores=bool(seed // 2 % 2))
        budget = error_budget(problem, inputs, reference, NUMERICS[bool(seed // 2 % 2)])
        accuracy = hold(outputs, reference, budget)
        assert accuracy.passed and not accuracy.suspicious, (problem, regime, seed, accuracy)


def largest_ratios(dtype: str, numerics: Numerics, **model: object) -> tuple[float, float]:
    """Of error to budget, and to what is expected, over some problems."""
    found = [
        judge(problem_with(dtype, fields), regime, numerics, tile=16, **model)
        for regime in FINITE_REGIMES
        for fields in SHAPES
    ]
    return max(a.error_over_budget for a in found), max(a.error_over_expected for a in found)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.exhaustive)])
def test_neither_tier_is_vacuous_in_16_bits(dtype: str):
    # What is left is the rounding of the output: nothing in front of it is larger.
    assert largest_ratios(dtype, NUMERICS[False])[0] > 0.9
    # A kernel that stores S and P, with the budget of one of which nothing is known.
    assert largest_ratios(dtype, Numerics(), store_scores=True)[0] > 0.3


@pytest.mark.exhaustive
def test_neither_tier_is_vacuous_in_float32():
    proved, expected = largest_ratios("float32", NUMERICS[False])
    assert proved > 0.05
    assert expected > 0.3
    assert largest_ratios("float32", Numerics())[1] > 0.05


SCALED_Q = {
    "tau": (("tau",), dataclasses.replace(NUMERICS[False], scaled_q=1)),
    "tau log2 e": (("tau log2 e",), dataclasses.replace(NUMERICS[False], functions="fast", scaled_q=1)),
    "tau, log2 e, S and P stored": (
        ("tau", "log2 e"),
        dataclasses.replace(NUMERICS[True], functions="fast", scaled_q=2),
    ),
}
"""How a kernel scales Q in 16 bits before the product, and what it then declares."""
MANY_SHORT_ROWS = {"mask": "causal", "q_len": 90, "kv_len": 30, "heads": 16, "kv_heads": 2}
"""Among many rows that see few keys are some whose sums are as wrong as sums in 16 bits become."""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("scaled", exhaustive_unless(lambda scaled: scaled == "tau log2 e", SCALED_Q))
def test_q_scaled_in_16_bits_has_to_be_declared(dtype: str, scaled: str):
    factors, declared = SCALED_Q[scaled]
    silent = dataclasses.replace(declared, scaled_q=0)
    model = {"tile": 16, "q_factors": factors, "store_scores": declared.scores == "problem"}
    unsaid = summed = summed_unsaid = 0.0
    for regime in ("normal", "hot", "constant", "far-negative"):
        for fields in (SHAPES[0], MANY_SHORT_ROWS, SHAPES[5]):
            problem = problem_with(dtype, fields)
            right = judge(problem, regime, declared, **model)
            assert right.passed and not right.suspicious, (regime, fields, right.reason, right.error_over_expected)
            unsaid = max(unsaid, judge(problem, regime, silent, **model).error_over_budget)
            if dtype == "float16":  # in which the mutant adds, and what bfloat16 stores hides that
                wrong = model | {"mutant": "16-bit sums"}
                summed = max(summed, judge(problem, regime, declared, **wrong).error_over_budget)
                summed_unsaid = max(summed_unsaid, judge(problem, regime, silent, **wrong).error_over_budget)
    assert unsaid > 1
    if dtype == "float16":
        assert summed_unsaid > 1
        # To store S costs more than sums in 16 bits do: who declares it, too, hides them.
        assert (summed > 1) == (declared.scores != "problem")


@pytest.mark.parametrize("scalings", [1, 2, 3])
def test_no_roundings_of_q_exceed_what_is_proved_and_the_worst_come_close(scalings: int):
    numerics = dataclasses.replace(NUMERICS[False], scaled_q=scalings)
    closest = 0.0
    for regime in ("normal", "hot", "offset", "overflow"):
        problem = Problem(heads=2, q_len=20, kv_len=24, head_dim=16, dtype="float16")
        inputs, reference = asked(problem, regime)
        budget = budget_of(problem, regime, numerics)
        q, k, v = (inputs[name].astype(np.float64) for name in "QKV")
        for key in (0, 7):
            # Every element of Q is rounded so that one key's score comes out too large, each time by the most there is.
            off = np.sign(problem.tau * q * k[:, :, None, key])
            scores = problem.tau * (q * (1 + off * 2.0**-11) ** scalings) @ k.mT
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            error = np.abs(p @ v / p.sum(axis=-1, keepdims=True) - reference["O"])
            promised = (budget["O"].allowed > 0) & np.isfinite(budget["O"].allowed)
            ratio = float((error[promised] / budget["O"].allowed[promised]).max())
            assert ratio <= 1, (regime, key)
            closest = max(closest, ratio)
    assert closest > 0.3


def test_scaled_q_may_overflow_float16_and_its_count_is_checked():
    problem = Problem(heads=1, q_len=2, kv_len=3, head_dim=4, dtype="float16", scale=1.0)
    inputs = {name: array * 0 for name, array in draw_inputs(problem).items()}
    inputs["Q"][0, 0, 1, 2] = 50000
    reference = attention(problem, inputs)
    open_rows = np.isinf(error_budget(problem, inputs, reference, Numerics(scaled_q=1))["lse"].allowed)
    assert open_rows.tolist() == [[[False, True]]]
    assert not np.isinf(error_budget(problem, inputs, reference, Numerics())["lse"].allowed).any()
    for bad in (-1, 5, "tau"):
        with pytest.raises(PluginError, match=r"numerics have scaled_q=.*; choose 0 to 4"):
            Numerics(scaled_q=bad)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("regime", FINITE_REGIMES)
def test_what_is_declared_narrows_the_budget_and_never_widens_it(dtype: str, regime: str):
    problem = problem_with(dtype, {"mask": "causal"})
    anything = budget_of(problem, regime, Numerics())
    for field, value in dataclasses.asdict(NUMERICS[False]).items():
        budget = budget_of(problem, regime, dataclasses.replace(Numerics(), **{field: value}))
        for output in ("O", "lse"):
            assert (budget[output].allowed <= anything[output].allowed * 1.03).all(), (field, output)
            assert (budget[output].expected <= anything[output].expected * 1.03).all(), (field, output)
    sharpest = budget_of(problem, regime, NUMERICS[False])
    assert (sharpest["O"].allowed < anything["O"].allowed)[anything["O"].allowed > 0].mean() > 0.9
    assert (sharpest["O"].expected <= sharpest["O"].allowed).all()
    assert (sharpest["lse"].expected <= sharpest["lse"].allowed).all()


def test_the_budget_depends_on_the_spread_of_values():
    # Errors that all weights share move nothing: beyond sums and output, the budget does not see the mean of V.
    problem = Problem(q_len=32, kv_len=32)
    inputs = draw_inputs(problem, "hot", 1)
    near = error_budget(problem, inputs, attention(problem, inputs), NUMERICS[False])["O"].allowed
    shifted = inputs | {"V": (inputs["V"] + np.float32(8)).astype(np.float32)}
    far = error_budget(problem, shifted, attention(problem, shifted), NUMERICS[False])["O"].allowed
    # What a mean of 8 costs: rescaling (5) and adding, at each of 32 keys, twice; four exponentials (4), whose
    # arguments (1 each) are scores of up to 250; the output.
    sums = 1.05 * 8 * U * (2 * 32 * 6 + 4 * 4 + 2 * 250 + 3)
    assert (far - near <= sums).all()
    assert (far - near).max() > sums / 10


@pytest.mark.parametrize("regime", ["hot", "overflow", "far-negative"])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_however_unsure_the_scores_nothing_beyond_the_values_passes(dtype: str, regime: str):
    problem = problem_with(dtype, {})
    inputs, reference = asked(problem, regime)
    v = inputs["V"].astype(np.float64)
    farthest = np.maximum(v.max(axis=2, keepdims=True) - reference["O"], reference["O"] - v.min(axis=2, keepdims=True))
    for declared in ("float32 throughout", "S and P stored"):
        budget = budget_of(problem, regime, DECLARED[declared])
        assert (budget["O"].allowed <= farthest + 0.03 * np.abs(v).max()).all()
        assert np.isfinite(budget["lse"].allowed).all()


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    problem = Problem(batch=3, heads=4, kv_heads=2, q_len=37, kv_len=19, head_dim=8, mask="causal")
    inputs = draw_inputs(problem, "hot")
    reference = attention(problem, inputs)
    whole = error_budget(problem, inputs, reference)
    for rows in (5, 37, 37 * 3, 37 * 8):
        monkeypatch.setattr("harness.operations.attention.oracle.BLOCK_BYTES", 8 * 19 * rows)
        parts = error_budget(problem, inputs, reference)
        for output in ("O", "lse"):
            assert np.allclose(whole[output].allowed, parts[output].allowed, rtol=1e-4)
            assert np.allclose(whole[output].expected, parts[output].expected, rtol=1e-4)


def stored_softmax(problem: Problem, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """O and lse of a right kernel that stores S, and P = softmax(S), in the problem's dtype. Takes sinks, one head."""
    stored = NUMPY_DTYPES[problem.dtype]
    q, k, v = (inputs[name][0, 0].astype(np.float32) for name in "QKV")
    s = (np.float32(problem.tau) * q @ k.T).astype(stored).astype(np.float32)
    sink = inputs["sinks"][0]
    m = np.maximum(s.max(axis=-1, keepdims=True), sink)
    l = np.exp(s - m).sum(axis=-1, keepdims=True) + np.exp(sink - m)
    p = (np.exp(s - m) / l).astype(stored).astype(np.float32)
    return {"O": (p @ v).astype(stored)[None, None], "lse": (m + np.log(l))[None, None, :, 0]}


@pytest.mark.parametrize("regime", ["constant", "exact", "normal"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_equal_keys_share_their_roundings_against_a_sink(dtype: str, regime: str):
    problem = Problem(heads=1, q_len=3, kv_len=300, head_dim=32, dtype=dtype, sinks=True)
    for seed in range(12):
        inputs = draw_inputs(problem, regime, seed)
        scores = inputs["Q"][0, 0].astype(np.float64) @ inputs["K"][0, 0].astype(np.float64).T
        inputs["V"] = np.abs(inputs["V"])
        # From a sink that weighs as much as all keys to one that leaves each of them a subnormal weight.
        inputs["sinks"] = np.float32([problem.tau * scores.max() + np.log(problem.kv_len) + seed])
        reference = attention(problem, inputs)
        budget = error_budget(problem, inputs, reference, NUMERICS[True])
        accuracy = hold(stored_softmax(problem, inputs), reference, budget)
        assert accuracy.passed and not accuracy.suspicious, (seed, accuracy)
