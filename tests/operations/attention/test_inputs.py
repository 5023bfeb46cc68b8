from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.operation import draw_inputs
from harness.operations.attention.inputs import REGIMES
from harness.operations.attention.problem import Problem
from harness.support.errors import UsageError

SMALL = Problem(batch=2, heads=4, kv_heads=2, q_len=33, kv_len=47, head_dim=24)


def scores(problem: Problem, inputs: dict[str, np.ndarray]) -> np.ndarray:
    q, k = inputs["Q"].astype(np.float64), inputs["K"].astype(np.float64)
    return problem.tau * np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, problem.group, axis=1))


def drawn_scores(regime: str, **fields: object) -> np.ndarray:
    problem = Problem(**({"heads": 4, "kv_heads": 2, "q_len": 128, "kv_len": 128} | fields))
    return scores(problem, draw_inputs(problem, regime, seed=3))


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("regime", REGIMES)
def test_every_regime_gives_finite_contiguous_arrays_of_the_problem(regime: str, dtype: str):
    for fields in ({}, {"scale": 0.0}, {"scale": -3.0}, {"q_len": 1, "kv_len": 1, "head_dim": 1}, {"scale": 1e-30}):
        problem = Problem(**({"batch": 2, "heads": 4, "kv_heads": 2, "dtype": dtype} | fields))
        inputs = draw_inputs(problem, regime, seed=1)
        assert list(inputs) == ["Q", "K", "V"]
        assert inputs["Q"].shape == problem.q_shape
        for array in inputs.values():
            assert array.dtype == NUMPY_DTYPES[dtype]
            assert array.flags.c_contiguous
            assert regime == "non-finite" or np.isfinite(array.astype(np.float64)).all()
        assert inputs["K"].shape == inputs["V"].shape == problem.kv_shape


@pytest.mark.parametrize("regime", REGIMES)
def test_same_seed_same_bits_and_another_seed_others(regime: str):
    first, again, other = (draw_inputs(SMALL, regime, seed) for seed in (5, 5, 6))
    # As bytes: a NaN is not equal to itself.
    assert all(first[name].tobytes() == again[name].tobytes() for name in "QKV")
    assert any(first[name].tobytes() != other[name].tobytes() for name in "QKV")


def test_values_do_not_depend_on_process_or_machine():
    program = (
        "from harness.model.operation import draw_inputs; from harness import Problem; import hashlib;"
        "i = draw_inputs(Problem(), 'normal', 0); print(hashlib.sha256(i['Q'].tobytes()).hexdigest())"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
    assert found == hashlib.sha256(draw_inputs(Problem(), "normal", 0)["Q"].tobytes()).hexdigest()
    # Written down once: a change of generator would make every recorded result mean something else.
    assert np.array_equal(draw_inputs(Problem(), "normal", 0)["Q"][0, 0, 0, :3], np.array(GOLDEN, np.float32))


GOLDEN = [-0.2059740275144577, -0.1288449466228485, -0.2897898852825165]


def test_a_dtype_rounds_the_same_values():
    wide = draw_inputs(SMALL, "normal", 2)["Q"]
    narrow = draw_inputs(Problem(**{**vars(SMALL), "dtype": "float16"}), "normal", 2)["Q"]
    assert np.allclose(wide, narrow.astype(np.float32), rtol=2**-11, atol=2**-25)


def test_regimes_are_what_they_say():
    assert drawn_scores("uniform").min() > 0
    hot = drawn_scores("hot")
    assert hot.max() > 100
    assert hot.min() < -100
    overflow = drawn_scores("overflow", dtype="float16")
    assert np.abs(overflow * 8).max() > 65504 > np.abs(overflow).max()
    negative = drawn_scores("negative")
    assert negative.max() < -104  # below it exp gives 0 in float32
    assert negative.min() > -500
    far = drawn_scores("far-negative", dtype="float16")
    assert -65504 < far.min() < far.max() < -50_000
    constant = drawn_scores("constant")
    assert np.allclose(constant, constant[..., :1])
    rising, falling = drawn_scores("rising"), drawn_scores("falling")
    assert (np.diff(rising, axis=-1) > 0).all()
    assert (np.diff(falling, axis=-1) < 0).all()
    needle = np.sort(drawn_scores("needle"), axis=-1)
    assert (needle[..., -1] - needle[..., -2] > 40).all()


@pytest.mark.parametrize("scale", [-0.125, 1.0, 30.0])
def test_the_signs_of_scores_do_not_depend_on_the_scale(scale: float):
    assert drawn_scores("negative", scale=scale).max() < -100
    assert (np.diff(drawn_scores("rising", scale=scale), axis=-1) > 0).all()


def test_offset_has_means_far_from_zero():
    inputs = draw_inputs(SMALL, "offset", 0)
    assert inputs["V"].mean() > 90
    assert inputs["K"].mean() > 3


def test_exact_is_what_sums_without_rounding():
    inputs = draw_inputs(SMALL, "exact", 0)
    assert not inputs["Q"].any()
    assert np.array_equal(inputs["V"], np.rint(inputs["V"]))
    assert np.abs(inputs["V"]).max() == 8


def test_repeated_has_maxima_that_are_met_again():
    s = drawn_scores("repeated")
    assert ((s == s.max(axis=-1, keepdims=True)).sum(axis=-1) > 1).mean() > 0.9


@pytest.mark.parametrize(("dtype", "smallest_normal"), [("float32", 2.0**-126), ("float16", 2.0**-14)])
def test_subnormal_has_values_on_both_sides(dtype: str, smallest_normal: float):
    v = np.abs(draw_inputs(Problem(dtype=dtype), "subnormal")["V"].astype(np.float64))
    assert 0.1 < (v < smallest_normal).mean() < 0.9
    assert (v > 0).mean() > 0.9


def test_non_finite_is_behind_the_mask_of_most_rows_or_in_one_column():
    open_ = draw_inputs(SMALL, "non-finite", 0)
    assert np.isfinite(open_["K"]).all()
    assert (~np.isfinite(open_["V"])).sum(axis=(2, 3)).tolist() == [[1, 1], [1, 1]]
    masked = draw_inputs(Problem(mask="causal"), "non-finite", 0)
    for name in "KV":
        where = np.argwhere(~np.isfinite(masked[name]))
        assert len(where) == 2
        assert (where[:, 2] >= 192).all()


def test_unknown_regime_and_bad_seed_are_one_line():
    with pytest.raises(UsageError, match="did you mean 'needle'"):
        draw_inputs(SMALL, "neddle")
    with pytest.raises(UsageError, match="seed is -1"):
        draw_inputs(SMALL, "normal", -1)
