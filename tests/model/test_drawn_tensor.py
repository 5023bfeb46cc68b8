"""Inputs of which any part can be drawn alone."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.model.cases import regime
from harness.model.cases.regime import NUMPY_DTYPES
from harness.model.drawn_tensor import DrawnTensor
from harness.model.operation import draw_input_parts, draw_inputs
from harness.operations.attention.problem import Problem

TENSOR = DrawnTensor((3, 4, 11, 5), NUMPY_DTYPES["float32"], 7, 2)
WHOLE = np.asarray(TENSOR)


@given(st.tuples(*(st.one_of(st.integers(0, n - 1), st.slices(n)) for n in TENSOR.shape)), st.integers(0, 4))
def test_a_part_is_that_part_of_the_whole(index: tuple[int | slice, ...], axes: int):
    assert np.array_equal(TENSOR[index[:axes]], WHOLE[index[:axes]])


def test_an_array_of_heads_goes_with_a_slice_of_batches():
    heads = np.array([2, 2, 0])
    assert np.array_equal(TENSOR[1:3, heads], WHOLE[1:3, heads])


def test_its_elements_are_of_mean_0_and_deviation_1_and_nearly_normal():
    drawn = np.asarray(DrawnTensor((1_000_003,), NUMPY_DTYPES["float32"], 0, 0)).astype(np.float64)
    assert abs(drawn.mean()) < 0.005 and abs(drawn.std() - 1) < 0.005
    beyond = [(np.abs(drawn) > x).mean() for x in (1, 2, 3)]
    assert beyond == pytest.approx([0.3173, 0.0455, 0.0027], rel=0.03, abs=0.0015)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.005


def test_seed_and_number_make_others():
    others = [DrawnTensor(TENSOR.shape, TENSOR.dtype, *key) for key in ((7, 2), (8, 2), (7, 1), (2**63 - 1, 0))]
    assert [np.array_equal(other, WHOLE) for other in others] == [True, False, False, False]


def test_one_number_of_every_dtype():
    for dtype in NUMPY_DTYPES.values():
        assert np.array_equal(DrawnTensor(TENSOR.shape, dtype, 7, 2), WHOLE.astype(dtype))


def test_large_inputs_are_drawn_by_position():
    problem = Problem(heads=2, q_len=3, kv_len=40, dtype="bfloat16")
    assert all(isinstance(array, np.ndarray) for array in draw_input_parts(problem, seed=3).values())
    with patch.object(regime, "LARGEST_DRAWN_BYTES", sum(t.size_bytes for t in problem.inputs) - 1):
        parts, whole = draw_input_parts(problem, seed=3), draw_inputs(problem, seed=3)
        assert all(isinstance(array, np.ndarray) for array in draw_input_parts(problem, "hot", 3).values())
    for tensor in problem.inputs:
        part = parts[tensor.name]
        assert isinstance(part, DrawnTensor)
        assert whole[tensor.name].shape == tensor.shape and whole[tensor.name].dtype == NUMPY_DTYPES[tensor.dtype]
        assert np.array_equal(part[:, 1], whole[tensor.name][:, 1])
    assert not np.array_equal(whole["K"], whole["V"])
