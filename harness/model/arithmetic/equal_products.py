"""Which sums of products have mostly equal ones: those are rounded alike, and nothing is random about that.

What one of the others adds, if it is large, makes each of these roundings larger, and they still repeat.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = TypeVar("Array", npt.NDArray[np.float32], npt.NDArray[np.float64])


def mostly_equal_products(x: Array, y: Array) -> npt.NDArray[np.bool_] | np.bool_:
    """Whether at least half of the products x_i y_i are equal, of each row of x with each of y.

    x is (..., m, d), y (..., n, d) and the answer (..., m, n), or False for all. Counted are products of elements of
    the magnitude that most of a row have.
    """
    x, y = _signs_of_one_magnitude(x), _signs_of_one_magnitude(y)
    if not (x.any() and y.any()):
        return np.False_  # as with most inputs
    number = np.abs(x) @ np.abs(y).mT
    equal: npt.NDArray[np.bool_] = (2 * number >= x.shape[-1]) & (np.abs(x @ y.mT) == number)
    return equal


def _signs_of_one_magnitude(x: Array) -> Array:
    """1 or -1 for elements of the most usual magnitude, 0 for others; all 0 where few elements have it."""
    magnitudes = np.abs(x)
    if not _may_repeat(magnitudes):
        return np.zeros_like(x)
    middle = x.shape[-1] // 2
    usual = np.partition(magnitudes, middle, axis=-1)[..., middle, None]
    same = (magnitudes == usual) & (usual > 0)
    same &= 2 * same.sum(axis=-1, keepdims=True) >= x.shape[-1]
    return np.where(same, np.sign(x), x.dtype.type(0))


def _may_repeat(magnitudes: Array) -> bool:
    """Whether half of some row may be equal: quicker than to look for what they equal.

    Of c >= d/2 equal ones in a row of d, at least c - 1 - (d - c) / 2 >= d/4 - 1 follow the one before within two.
    """
    fewest = magnitudes.shape[-1] - 4
    repeats = [magnitudes[..., k:] == magnitudes[..., :-k] for k in (1, 2)]
    if 4 * sum(map(np.count_nonzero, repeats)) < fewest:
        return False  # not even in all rows together, as with most inputs
    return bool(np.any(4 * sum(each.sum(axis=-1, dtype=np.int32) for each in repeats) >= fewest))
