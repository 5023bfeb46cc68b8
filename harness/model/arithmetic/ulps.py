"""Distances between floating-point numbers, counted in numbers of their dtype."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def ulps_apart(one: np.ndarray, other: np.ndarray) -> npt.NDArray[np.float64]:
    """Return how many floating-point numbers of their dtype two arrays are apart, element by element.

    0 if the bits are equal or both are NaN; 1 between +0 and -0; infinity if one is NaN.
    """
    is_nan = [np.isnan(each.astype(np.float64)) for each in (one, other)]
    places = [_place(each) for each in (one, other)]
    apart: npt.NDArray[np.float64] = np.abs(places[0] - places[1]).astype(np.float64)
    apart[is_nan[0] != is_nan[1]] = np.inf
    apart[is_nan[0] & is_nan[1]] = 0.0
    return apart


def _place(array: np.ndarray) -> npt.NDArray[np.int64]:
    """Number floating-point numbers in their order, so that neighbours differ by 1."""
    bits = np.ascontiguousarray(array).view(f"i{array.dtype.itemsize}").astype(np.int64)
    lowest = -(2 ** (8 * array.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits - 1, bits)
