"""Distances of values from the answer, summed over keys without an array of (rows, keys, elements of V).

Dropout does not change the softmax's denominator, and multiplies weights by d_ij, which is 0 or c = 1 / (1 - P). So row
i has its own values v'_j = d_ij v_j. With weights p, o = sum p_j v'_j, and a kernel computes

    o^ = sum p_j exp(c_j + a_j) v'_j / sum p_j exp(c_j + b_j)

in the notation of `error_budget`. Its derivation does not assume that rows share their values, so it holds with v'_j in
place of v_j. |v'_j - o| is |c v_j - o| if the weight is kept and |o| if it is dropped, since the error of a dropped
weight still affects the denominator. A mean of values is a mean of c v_j and 0. Rounding c and its product adds 2u to
a_j.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Distances:
    """|v_j - o| for the keys j and the answers o of some heads. Weights are (b, h, rows, keys), sums (b, h, rows, d).

    Everything is in float32 and relative to a centre c of the values: (v_j - o)^2 = x^2 - 2 x y + y^2, with x = v_j - c
    and y = o - c, is computed by matrix products. A bound on the cancellation error is added, so that no sum is too
    small.
    """

    moments: Array
    """(b, h, keys, 3 d + 1): x^2, x, 1 and |x| concatenated, so that one matrix product computes all sums."""
    y: Array
    """(b, h, rows, d): o - c."""
    kept: Array | None = None
    """(b, h, rows, keys): 0 for dropped weights, else 1; c is 0 then. None without dropout."""

    @classmethod
    def of(
        cls, v: npt.NDArray[np.float64], o: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_] | None = None
    ) -> Distances:
        """Return the distances of values `v`, (b, h, keys, d) and finite, from answers `o`, (b, h, rows, d).

        Squares of `v` and `o` must not overflow in float32. `kept` is the field. With dropout, `v` includes the factor
        on kept weights.
        """
        centre = v.mean(axis=-2, keepdims=True) if kept is None else np.zeros(())
        x = (v - centre).astype(np.float32)
        d = x.shape[-1]
        moments = np.empty((*x.shape[:-1], 3 * d + 1), np.float32)
        np.multiply(x, x, out=moments[..., :d])
        moments[..., d : 2 * d] = x
        moments[..., 2 * d] = 1
        np.abs(x, out=moments[..., 2 * d + 1 :])
        return cls(moments, (o - centre).astype(np.float32), None if kept is None else kept.astype(np.float32))

    def squared(self, weights: Array) -> Array:
        """Return sum w_j (v_j - o)^2, slightly increased, for weights that are not dropped."""
        d = self.y.shape[-1]
        sums = weights @ self.moments[..., : 2 * d + 1]
        return self._squared(sums[..., :d], sums[..., d : 2 * d], sums[..., 2 * d :])

    def root_of_squares(self, *errors: Array) -> Array:
        """Return sqrt(sum e_j^2 (v_j - o)^2), slightly increased, where e_j^2 is the sum of squares of the `errors`."""
        if self.kept is None:
            return np.sqrt(self.squared(_sum_of_squares(errors)))
        # If a key with nearly all weight is dropped, squares of the other weights may underflow in float32.
        kept = [each * self.kept for each in errors]
        unit = np.maximum.reduce([each.max(axis=-1, keepdims=True) for each in kept])
        unit[unit == 0] = 1.0
        of_kept = unit * np.sqrt(self.squared(_sum_of_squares([each / unit for each in kept])))
        dropped = _sum_of_squares([each * (1 - self.kept) for each in errors]).sum(axis=-1, keepdims=True)
        both: Array = np.hypot(of_kept, np.abs(self.y) * np.sqrt(dropped))
        return both

    def absolute(self, weights: Array) -> Array:
        """Return an upper bound on sum w_j |v_j - o|: Cauchy's, or the triangle inequality's if it is smaller."""
        d = self.y.shape[-1]
        kept, dropped = self._split(weights)
        sums = kept @ self.moments
        total = sums[..., 2 * d : 2 * d + 1]
        squared = self._squared(sums[..., :d], sums[..., d : 2 * d], total)
        smaller: Array = np.minimum(np.sqrt(squared) * np.sqrt(total), sums[..., 2 * d + 1 :] + np.abs(self.y) * total)
        return smaller + dropped * np.abs(self.y)

    def farthest(self) -> Array:
        """Return the largest |v_j - o| over all keys, including those that a row does not see."""
        d = self.y.shape[-1]
        x = self.moments[..., d : 2 * d]
        above, below = x.max(axis=-2, keepdims=True) - self.y, self.y - x.min(axis=-2, keepdims=True)
        farthest: Array = np.maximum(above, below)
        return farthest if self.kept is None else np.maximum(farthest, np.abs(self.y))

    @cached_property
    def _largest_square(self) -> Array:
        """(b, h, 1, d): the largest x^2."""
        largest: Array = self.moments[..., : self.y.shape[-1]].max(axis=-2, keepdims=True)
        return largest

    def _split(self, weights: Array) -> tuple[Array, Array | np.float32]:
        """Split weights into the kept ones and the sum of the dropped ones, (b, h, rows, 1)."""
        if self.kept is None:
            return weights, np.float32(0)
        dropped: Array = (weights * (1 - self.kept)).sum(axis=-1, keepdims=True)
        return weights * self.kept, dropped

    def _squared(self, xx: Array, x: Array, total: Array) -> Array:
        # An answer is a mean of values, so y^2 is at most the largest x^2. With dropout, 0 is a value and c is 0.
        sums = xx + self.y * (self.y * total - 2 * x)
        squared: Array = np.maximum(sums, np.float32(0)) + np.float32(2.0**-20) * self._largest_square * total
        return squared


def _sum_of_squares(errors: Sequence[Array]) -> Array:
    squares = np.square(errors[0])
    for further in errors[1:]:
        squares += np.square(further)
    return squares
