from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest

import harness.operations.attention.oracle
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import draw_inputs
from harness.operations.attention.budget.error_budget import error_budget
from harness.operations.attention.oracle import Block, answer_of, attention
from harness.operations.attention.problem import Problem
from harness.support import cores


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, tau: float, sees: list[range]) -> tuple[np.ndarray, np.ndarray]:
    """One head, one row and one key at a time, as the definition reads."""
    out, lse = np.zeros((len(q), v.shape[1])), np.full(len(q), -math.inf)
    for i, keys in enumerate(sees):
        s = {j: tau * math.fsum(float(a) * float(b) for a, b in zip(q[i], k[j], strict=True)) for j in keys}
        if s:
            m = max(s.values())
            total = math.fsum(math.exp(x - m) for x in s.values())
            lse[i] = m + math.log(total)
            for c in range(v.shape[1]):
                out[i, c] = math.fsum(math.exp(x - m) / total * float(v[j, c]) for j, x in s.items())
    return out, lse


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (5, 5), (3, 9), (9, 3)])
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_definition(dtype: str, q_len: int, kv_len: int, causal: bool):
    problem = Problem(
        batch=2,
        heads=4,
        kv_heads=2,
        q_len=q_len,
        kv_len=kv_len,
        head_dim=3,
        dtype=dtype,
        mask="causal" if causal else "none",
        scale=0.7,
    )
    inputs = draw_inputs(problem, "normal", 4)
    reference = attention(problem, inputs)
    # Bottom-right: the last query sees every key.
    sees = [range(max(0, kv_len - (q_len - 1 - i))) if causal else range(kv_len) for i in range(q_len)]
    for b in range(2):
        for h in range(4):
            q, k, v = inputs["Q"][b, h], inputs["K"][b, h // 2], inputs["V"][b, h // 2]
            out, lse = plain(q, k, v, 0.7, sees)
            assert np.allclose(reference["O"][b, h], out, rtol=1e-12, atol=1e-14)
            assert np.allclose(reference["lse"][b, h], lse, rtol=1e-12)


def given(q: list, k: list, v: list, scale: float = 1.0) -> tuple[Problem, dict[str, np.ndarray]]:
    arrays = {name: np.array(rows, np.float32)[None, None] for name, rows in (("Q", q), ("K", k), ("V", v))}
    q_len, dim = arrays["Q"].shape[2:]
    problem = Problem(heads=1, q_len=q_len, kv_len=arrays["K"].shape[2], head_dim=dim, scale=scale)
    return problem, arrays


def test_streaming_softmax_of_1_2_3_4():
    # Milakov and Gimelshein 2018: relative to the maximum 4 the denominator is e^-3 + e^-2 + e^-1 + 1 = 1.553.
    reference = attention(*given([[1]], [[1], [2], [3], [4]], [[1], [2], [3], [4]]))
    assert reference["lse"][0, 0, 0] == pytest.approx(4 + math.log(1.5530), abs=1e-4)
    assert reference["O"][0, 0, 0, 0] == pytest.approx(
        sum(j * math.exp(j - 4) for j in range(1, 5)) / 1.553002, rel=1e-5
    )


def test_scores_2_3_5_4():
    reference = attention(*given([[1]], [[2], [3], [5], [4]], [[10], [20], [30], [40]]))
    assert reference["O"][0, 0, 0, 0] == pytest.approx(30.86, abs=0.005)


def test_eight_keys():
    k = [[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1], [0, 0, 1, 0], [2, 1, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 1]]
    v = [[2, 1, 0, 3], [1, 0, 1, 2], [0, 2, 1, 1], [3, 1, 0, 0], [1, 3, 2, 0], [0, 1, 0, 2], [2, 0, 1, 1], [1, 0, 0, 3]]
    problem, inputs = given([[1, 0, 2, 1]], k, v)
    assert (inputs["Q"][0, 0] @ inputs["K"][0, 0].T).tolist() == [[1, 2, 4, 2, 5, 1, 3, 1]]
    assert attention(problem, inputs)["O"][0, 0, 0] == pytest.approx([0.920, 2.306, 1.540, 0.452], abs=0.0005)


def test_rows_that_see_nothing_are_0_and_minus_infinity():
    problem = Problem(heads=1, q_len=6, kv_len=4, head_dim=2, mask="causal")
    reference = attention(problem, draw_inputs(problem))
    assert (reference["O"][0, 0, :2] == 0).all()
    assert (reference["lse"][0, 0, :2] == -np.inf).all()
    assert np.isfinite(reference["lse"][0, 0, 2:]).all()


def test_nan_reaches_whoever_sees_it_and_nobody_else():
    problem = Problem(heads=1, q_len=4, kv_len=4, head_dim=2, mask="causal")
    for name in "KV":
        inputs = draw_inputs(problem)
        inputs[name][0, 0, 2, 1] = np.nan
        out = attention(problem, inputs)["O"][0, 0]
        assert np.isfinite(out[:2]).all()
        assert np.isnan(out[2:]).any(axis=1).all()


def test_scores_far_from_zero_do_not_overflow():
    problem = Problem(heads=1, q_len=16, kv_len=16)
    for regime in ("hot", "overflow", "far-negative"):
        reference = attention(problem, draw_inputs(problem, regime))
        assert np.isfinite(reference["O"]).all()
        assert np.isfinite(reference["lse"]).all()


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch):
    problem = Problem(heads=2, q_len=37, kv_len=19, head_dim=8, mask="causal")
    inputs = draw_inputs(problem)
    whole = attention(problem, inputs)
    monkeypatch.setattr(harness.operations.attention.oracle, "BLOCK_BYTES", 8 * 19 * 5)
    parts = attention(problem, inputs)
    # BLAS may sum in another order for another number of rows.
    assert np.allclose(whole["O"], parts["O"], rtol=1e-13, atol=1e-15)
    assert np.allclose(whole["lse"], parts["lse"], rtol=1e-14)


@pytest.mark.parametrize("fields", [{"mask": "causal"}, {"mask": "documents:20+41", "dropout": 0.1}, {"sinks": True}])
def test_answers_and_budgets_are_the_same_over_all_cores(monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]):
    problem = Problem(batch=2, heads=4, kv_heads=2, q_len=67, kv_len=61, head_dim=8, **fields)
    inputs = draw_inputs(problem, "normal", 3)
    inputs["V"][1, 0, 17, 3] = np.nan
    monkeypatch.setattr(harness.operations.attention.oracle, "BLOCK_BYTES", 8 * 61 * 10)  # ten rows
    alone = attention(problem, inputs)
    budget = error_budget(problem, inputs, alone)
    threads = set()

    def answer_noting_its_thread(block: Block) -> dict[str, np.ndarray]:
        threads.add(threading.get_ident())
        time.sleep(0.001)
        return answer_of(block)

    monkeypatch.setattr(harness.operations.attention.oracle, "answer_of", answer_noting_its_thread)
    monkeypatch.setattr(harness.operations.attention.oracle, "FEWEST_SCORES_TO_SPREAD", 0)
    monkeypatch.setattr(cores, "usable_cores", lambda: 3)
    spread = attention(problem, inputs)
    assert len(threads) == 3 and alone.blocks is None and spread.blocks is None
    for name in ("O", "lse"):
        np.testing.assert_array_equal(spread[name], alone[name])
    spread_budget = error_budget(problem, inputs, spread)
    for name in ("O", "lse"):
        np.testing.assert_array_equal(spread_budget[name].allowed, budget[name].allowed)
        np.testing.assert_array_equal(spread_budget[name].expected, budget[name].expected)
