"""Detects sums whose products are mostly equal. Such products round alike, so their rounding errors are not random.

A large other term makes each of these roundings larger, and they still repeat.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = TypeVar("Array", npt.NDArray[np.float32], npt.NDArray[np.float64])


def mostly_equal_products(x: Array, y: Array) -> npt.NDArray[np.bool_] | np.bool_:
    """Whether at least half of the products x_i y_i are equal, for each row of x with each row of y.

    x has the shape (..., m, d), y (..., n, d) and the result (..., m, n); a result of False applies to all pairs. Only
    products of elements with their row's most frequent magnitude are counted.
    """
    x, y = _signs_of_one_magnitude(x), _signs_of_one_magnitude(y)
    if not (x.any() and y.any()):
        return np.False_  # the usual case
    number = np.abs(x) @ np.abs(y).mT
    equal: npt.NDArray[np.bool_] = (2 * number >= x.shape[-1]) & (np.abs(x @ y.mT) == number)
    return equal


def _signs_of_one_magnitude(x: Array) -> Array:
    """Return 1 or -1 for elements of the row's most frequent magnitude, otherwise 0. All 0 if few elements have it."""
    magnitudes = np.abs(x)
    if not _may_repeat(magnitudes):
        return np.zeros_like(x)
    middle = x.shape[-1] // 2
    usual = np.partition(magnitudes, middle, axis=-1)[..., middle, None]
    same = (magnitudes == usual) & (usual > 0)
    same &= 2 * same.sum(axis=-1, keepdims=True) >= x.shape[-1]
    return np.where(same, np.sign(x), x.dtype.type(0))


def _may_repeat(magnitudes: Array) -> bool:
    """Whether half of the elements of some row may be equal. Faster than finding the value that they equal.

    If c >= d/2 elements in a row of d are equal, at least c - 1 - (d - c) / 2 >= d/4 - 1 of them equal one of the two
    elements before.
    """
    fewest = magnitudes.shape[-1] - 4
    repeats = [magnitudes[..., k:] == magnitudes[..., :-k] for k in (1, 2)]
    if 4 * sum(map(np.count_nonzero, repeats)) < fewest:
        return False  # too few even in all rows together, which is the usual case
    return bool(np.any(4 * sum(each.sum(axis=-1, dtype=np.int32) for each in repeats) >= fewest))
