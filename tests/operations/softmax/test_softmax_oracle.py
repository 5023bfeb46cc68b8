"""The oracle of softmax: worked values, what is not finite, and parts of the whole."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.model.operation import Part, draw_inputs
from harness.operations.softmax import oracle
from harness.operations.softmax.inputs import BEYOND_EXP, REGIMES
from harness.operations.softmax.problem import SoftmaxProblem

NAN, INF = math.nan, math.inf


def answer(*rows: list[float]) -> np.ndarray:
    X = np.array(rows, np.float32)
    return oracle.softmax(SoftmaxProblem(rows=X.shape[0], columns=X.shape[1]), {"X": X})["Y"]


def test_worked_values():
    # exp(0) : exp(ln 3) = 1 : 3, whatever is added to both.
    log3 = float(np.float32(math.log(3)))
    expected = [1 / (1 + math.exp(log3)), 1 / (1 + math.exp(-log3))]
    np.testing.assert_allclose(answer([0, log3], [-log3, 0]), [expected, expected], rtol=1e-15)
    assert answer([1000.0, 1000.0, 1000.0, 1000.0]).tolist() == [[0.25] * 4]
    assert answer([-7.0]).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0.0, NAN, 1.0], [NAN] * 3),
        ([0.0, INF, 1.0], [NAN] * 3),
        ([-INF, -INF, -INF], [NAN] * 3),
        ([0.0, -INF, 0.0], [0.5, 0.0, 0.5]),
    ],
)
def test_what_is_not_finite_follows_ieee_and_stays_in_its_row(row: list[float], expected: list[float]):
    np.testing.assert_array_equal(answer(row, [0.0, 0.0, -INF]), [expected, [0.5, 0.5, 0.0]])


def test_a_part_is_that_part_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(oracle, "BLOCK_ELEMENTS", 20)
    problem = SoftmaxProblem(rows=11, columns=7)
    X = draw_inputs(problem, "normal", 1)["X"]
    whole = oracle.softmax(problem, {"X": X})["Y"]
    np.testing.assert_allclose(whole.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_array_equal(oracle.softmax(problem, {"X": X}, Part((slice(3, 9),)))["Y"], whole[3:9])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("regime", REGIMES)
def test_regimes_are_what_they_say(regime: str, dtype: str):
    problem = SoftmaxProblem(rows=8, columns=100, dtype=dtype)
    X = draw_inputs(problem, regime, 3)["X"].astype(np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        sums = np.exp(X.astype(np.float32)).sum(axis=1, dtype=np.float32)
    leaves_float32 = ~np.isfinite(sums) | (sums == 0)
    assert leaves_float32.any() == (regime in BEYOND_EXP)
    if regime != "non-finite":
        assert np.isfinite(X).all()
        # The answer stands in normal numbers somewhere: there is something to hold a kernel against.
        assert (oracle.softmax(problem, {"X": X})["Y"].max(axis=1) > 1e-3).all()


@pytest.mark.parametrize("columns", [1, 5])
def test_the_first_row_of_non_finite_inputs_holds_infinity(columns: int):
    for seed in range(5):
        X = draw_inputs(SoftmaxProblem(rows=8, columns=columns), "non-finite", seed)["X"]
        assert np.isposinf(X[0]).sum() == 1 and np.isfinite(X[1::2]).all()
        assert np.isnan(X[2]).sum() == 1 and np.isneginf(X[4]).sum() == 1 and np.isneginf(X[6]).all()
