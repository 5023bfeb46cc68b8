from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from harness.model.arithmetic.ulps import ulps_apart


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_neighbours_are_one_apart_across_zero_and_binades(dtype: type):
    one = np.array([1.0, -1.0, 0.0, 0.0, np.nan, np.inf], dtype)
    bits = np.dtype(f"u{one.dtype.itemsize}")
    other = one.copy()
    other.view(bits)[:2] += 1  # away from 0
    other[2:4] = np.array([-0.0, 0.0], dtype)
    other.view(bits)[5] -= 1  # the largest finite number
    assert ulps_apart(one, other).tolist() == [1, 1, 1, 0, 0, 1]
    below_one = one.copy()
    below_one.view(bits)[:2] -= 1
    assert ulps_apart(below_one, other)[:2].tolist() == [2, 2]


def test_a_number_is_infinitely_far_from_nan():
    one, other = np.array([np.nan, 1.0], np.float32), np.array([2.0, np.nan], np.float32)
    assert ulps_apart(one, other).tolist() == [np.inf, np.inf]


def test_smallest_numbers_of_both_signs_are_three_apart():
    smallest = np.array([2.0**-149], np.float32)
    assert ulps_apart(smallest, -smallest).tolist() == [3]
