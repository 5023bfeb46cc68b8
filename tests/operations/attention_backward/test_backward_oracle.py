"""The oracle of gradients: against differences of the forward pass, by parts, and what reaches nobody."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import pytest

from harness.model.numerics import Numerics
from harness.model.operation import Part, draw_inputs, operation_named
from harness.operations.attention.bias import AXES
from harness.operations.attention_backward import oracle
from harness.operations.attention_backward.cases import backward
from harness.operations.attention_backward.inputs import REGIMES
from harness.operations.attention_backward.problem import BackwardProblem

STEP = 1e-5
ATTENTION, BACKWARD = operation_named("attention"), operation_named("attention-backward")

TINY = {
    "plain": BackwardProblem(heads=1, q_len=3, kv_len=4, head_dim=2),
    "causal, rows that see nothing": BackwardProblem(heads=1, q_len=5, kv_len=3, head_dim=2, mask="causal"),
    "window, grouped": BackwardProblem(batch=2, heads=4, kv_heads=2, q_len=4, kv_len=5, head_dim=2, mask="window:1,1"),
    "documents, others in each sequence": BackwardProblem(
        batch=2, heads=2, kv_heads=1, q_len=5, kv_len=4, head_dim=2, mask="causal+documents:2+2/1+3"
    ),
    "weights drop out, grouped": BackwardProblem(
        batch=2, heads=4, kv_heads=2, q_len=3, kv_len=5, head_dim=2, dropout=0.4, dropout_seed=2**33
    ),
    "weights drop out, causal": BackwardProblem(heads=2, q_len=4, kv_len=4, head_dim=2, mask="causal", dropout=0.5),
    "capped, grouped": BackwardProblem(
        batch=2, heads=4, kv_heads=2, q_len=3, kv_len=5, head_dim=2, softcap=0.7, mask="causal"
    ),
    "ALiBi": BackwardProblem(heads=3, kv_heads=1, q_len=4, kv_len=3, head_dim=2, alibi=True, scale=2.0),
    "sinks, rows that see nothing": BackwardProblem(
        batch=2, heads=5, q_len=5, kv_len=3, head_dim=2, mask="causal", sinks=True
    ),
    "a bias of its own for each score": BackwardProblem(
        batch=2, heads=2, kv_heads=1, q_len=3, kv_len=4, head_dim=2, bias="heads,q_len,kv_len", mask="window:1,2"
    ),
    "a bias of keys": BackwardProblem(batch=2, heads=2, q_len=3, kv_len=4, head_dim=2, bias="kv_len"),
    "a bias of rows, without weight": BackwardProblem(batch=2, heads=2, q_len=3, kv_len=4, head_dim=2, bias="q_len"),
    "a bias of heads, beside sinks": BackwardProblem(
        batch=2, heads=2, q_len=3, kv_len=4, head_dim=2, bias="heads", sinks=True, dropout=0.3
    ),
    "all together": BackwardProblem(
        batch=2,
        heads=4,
        kv_heads=2,
        q_len=4,
        kv_len=5,
        head_dim=3,
        bias="heads,kv_len",
        sinks=True,
        softcap=0.5,
        alibi=True,
        dropout=0.25,
        mask="causal",
    ),
    "rows of V longer, grouped": BackwardProblem(
        heads=4, kv_heads=2, q_len=3, kv_len=4, head_dim=2, v_head_dim=5, mask="causal", sinks=True, bias="heads,kv_len"
    ),
    "rows of V shorter, weights drop out": BackwardProblem(
        heads=2, q_len=3, kv_len=5, head_dim=4, v_head_dim=1, dropout=0.4
    ),
    "one head of keys, scaled": BackwardProblem(heads=3, kv_heads=1, q_len=2, kv_len=3, head_dim=3, scale=-0.7),
}


def loss(problem: BackwardProblem, arrays: dict[str, np.ndarray]) -> float:
    O = ATTENTION.answer(problem, arrays)["O"]
    return float((O * arrays["dO"]).sum())


def difference(problem: BackwardProblem, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    found = np.zeros_like(arrays[name])
    for index in np.ndindex(found.shape):
        ends = []
        for sign in (1, -1):
            moved = arrays[name].copy()
            moved[index] += sign * STEP
            ends.append(loss(problem, {**arrays, name: moved}))
        found[index] = (ends[0] - ends[1]) / (2 * STEP)
    return found


@pytest.mark.parametrize("problem", TINY.values(), ids=TINY)
def test_gradients_are_the_central_differences_of_the_forward_pass(problem: BackwardProblem):
    arrays = {name: array.astype(np.float64) for name, array in draw_inputs(problem, "normal", 3).items()}
    arrays |= dict(ATTENTION.answer(problem, arrays))  # O and lse as they are, not rounded
    found = oracle.gradients(problem, arrays)
    for name in (name.removeprefix("d") for name in found):
        np.testing.assert_allclose(found[f"d{name}"], difference(problem, arrays, name), rtol=1e-7, atol=1e-9)


def test_a_worked_example():
    # Two keys of equal score: P = 1/2. V = (1, 3), dO = 2: O = 2, dP = (2, 6), D = 4, dS = (-1, 1).
    problem = BackwardProblem(heads=1, q_len=1, kv_len=2, head_dim=1, scale=3.0)
    column = {"Q": [5.0], "K": [0.25, 0.25], "V": [1.0, 3.0], "O": [2.0], "dO": [2.0]}
    inputs = {name: np.array(values).reshape(1, 1, -1, 1) for name, values in column.items()}
    inputs["lse"] = np.array([[[3 * 5 * 0.25 + np.log(2)]]])
    found = oracle.gradients(problem, inputs)
    np.testing.assert_allclose(found["dV"].ravel(), [1, 1])
    np.testing.assert_allclose(found["dK"].ravel(), [-15, 15])
    np.testing.assert_allclose(found["dQ"].ravel(), [0], atol=1e-14)


BIASES = ("heads,q_len,kv_len", "heads,kv_len", "q_len", "kv_len", "heads")


def part_of(
    problem: BackwardProblem, head: int, rows: slice, keys: slice, others: Mapping[str, tuple[slice, ...]] = {}
) -> Part:
    kv = head // problem.group
    of_keys = (slice(1, 2), slice(kv, kv + 1), keys)
    return Part(
        (slice(1, 2), slice(head, head + 1), rows),
        "a part",
        {"dK": of_keys, "dV": of_keys, "dsinks": (slice(head, head + 1),), **others},
    )


@pytest.mark.parametrize("block_bytes", [8, 2000, oracle.BLOCK_BYTES])
@pytest.mark.parametrize("terms", [{}, *({"softcap": 1.0, "bias": axes, "sinks": True} for axes in BIASES)])
def test_a_part_is_that_part_of_the_whole_whatever_the_blocks(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int, terms: dict[str, object]
):
    problem = BackwardProblem(
        batch=2, heads=6, kv_heads=2, q_len=11, kv_len=9, head_dim=5, mask="causal+window:4", **terms
    )
    inputs = draw_inputs(problem, "non-finite", 5)
    whole = oracle.gradients(problem, inputs)
    monkeypatch.setattr(oracle, "BLOCK_BYTES", block_bytes)
    again = oracle.gradients(problem, inputs)
    bias = zip(AXES, (slice(4, 5), slice(2, 9), slice(3, 8)))
    own = {"dbias": tuple(run if axis in (problem.bias or ()) else slice(0, 1) for axis, run in bias)}
    part = part_of(problem, 4, slice(2, 9), slice(3, 8), own)
    found = oracle.gradients(problem, inputs, part)
    for name, array in whole.items():
        np.testing.assert_allclose(again[name], array, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found[name], array[part.of(name)], rtol=1e-12, atol=1e-14)


def test_large_problems_are_checked_in_parts_and_small_ones_whole():
    problem = BackwardProblem(
        batch=3, heads=4, kv_heads=2, q_len=100, kv_len=70, head_dim=8, bias="heads,kv_len", sinks=True
    )
    assert len(BACKWARD.parts(problem, 1e12)) == 1
    parts = BACKWARD.parts(problem, 1.0)
    inputs = draw_inputs(problem, "normal", 1)
    whole = oracle.gradients(problem, inputs)
    assert len({part.name for part in parts}) == len(parts) == 8
    for part in parts:
        found = oracle.gradients(problem, inputs, part)
        assert all(array.size for array in found.values())
        for name, array in found.items():
            np.testing.assert_allclose(array, whole[name][part.of(name)], rtol=1e-12, atol=1e-14)


def test_rows_and_keys_that_see_nobody_have_no_gradient():
    problem = BackwardProblem(heads=1, q_len=9, kv_len=4, head_dim=3, mask="causal+window:1")
    found = oracle.gradients(problem, draw_inputs(problem, "normal", 2))
    assert np.all(found["dQ"][0, 0, :5] == 0)
    wide = dataclasses.replace(problem, q_len=4, kv_len=9)
    found = oracle.gradients(wide, draw_inputs(wide, "normal", 2))
    for name in ("dK", "dV"):
        assert np.all(found[name][0, 0, :4] == 0) and np.all(found[name][0, 0, 4:] != 0)


@pytest.mark.parametrize("name", ["Q", "K", "V", "O", "dO", "lse"])
def test_nan_reaches_nobody_who_does_not_see_it(name: str):
    # Row i sees keys i and i + 1 of six.
    problem = BackwardProblem(heads=1, q_len=6, kv_len=6, head_dim=2, mask="window:0,1")
    inputs = draw_inputs(problem, "normal", 4)
    clean = oracle.gradients(problem, inputs)
    inputs[name][0, 0, 3] = np.nan
    found = oracle.gradients(problem, inputs)
    budget = BACKWARD.tolerance(problem, inputs, found, Numerics())
    # A key reaches the rows that see it, a row itself; those rows reach the keys that they see.
    rows = [2, 3] if name in "KV" else [3]
    keys = sorted({key for row in rows for key in (row, row + 1)})
    for output, reached in (("dQ", rows), ("dK", keys), ("dV", keys)):
        open_ = np.isinf(budget[output].allowed[0, 0]).any(axis=-1)
        assert np.flatnonzero(open_).tolist() == reached
        others = [i for i in range(6) if i not in reached]
        np.testing.assert_array_equal(found[output][0, 0, others], clean[output][0, 0, others])
        assert np.isfinite(found[output]).all()


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_regime_leaves_something_to_hold_a_kernel_against(regime: str, dtype: str):
    problem = BackwardProblem(heads=2, kv_heads=1, q_len=12, kv_len=16, head_dim=8, dtype=dtype, mask="causal")
    inputs = draw_inputs(problem, regime, 1)
    assert {tensor.name: tensor.shape for tensor in problem.inputs} == {n: a.shape for n, a in inputs.items()}
    answer = oracle.gradients(problem, inputs)
    numerics = Numerics(scores="float32", weights="float32", functions="__expf", sums="nearest")
    budget = BACKWARD.tolerance(problem, inputs, answer, numerics)
    for tolerance in budget.values():
        assert not np.isnan(tolerance.allowed).any()
        assert np.all(tolerance.expected <= tolerance.allowed)
    # One NaN in V may reach every key, by way of the rows that see it, but not the rows ahead of it.
    asked = ("dQ",) if regime == "non-finite" else budget
    assert all(np.isfinite(budget[name].allowed).any() for name in asked)


def test_problems_are_those_of_attention_with_more_tensors():
    problem = BackwardProblem(batch=2, heads=6, kv_heads=2, q_len=5, kv_len=7, head_dim=4, dtype="float16")
    shapes = {tensor.name: tensor.shape for tensor in problem.tensors}
    assert shapes["lse"] == (2, 6, 5) and shapes["dQ"] == (2, 6, 5, 4) and shapes["dK"] == shapes["dV"] == (2, 2, 7, 4)
    assert {tensor.name for tensor in problem.outputs} == {"dQ", "dK", "dV"}
    forward = ATTENTION.problem(batch=2, heads=6, kv_heads=2, q_len=5, kv_len=7, head_dim=4, dtype="float16")
    assert 2 * problem.flops == 5 * forward.flops
    assert backward(forward) == problem
