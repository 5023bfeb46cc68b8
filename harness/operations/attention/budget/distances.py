"""How far values lie from the answer, added up over keys, without an array of (rows, keys, head_dim).

Dropout leaves a softmax's denominator as it is and multiplies weights by d_ij, which is 0 or c = 1 / (1 - P). So row i
has values of its own, v'_j = d_ij v_j: with p the weights, o = sum p_j v'_j, and what a kernel computes is

    o^ = sum p_j exp(c_j + a_j) v'_j / sum p_j exp(c_j + b_j)

in the letters of `error_budget`. Nothing in its derivation asks that rows share their values, so all of it holds with
v'_j in place of v_j. |v'_j - o| is |c v_j - o| where the weight is kept, and |o| where it drops out: the error of that
weight still moves the denominator. What is a mean of values is one of c v_j and of 0. c itself is rounded, and so is
its product: 2u more in a_j.
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

    All is in float32 and relative to a centre c of the values: (v_j - o)^2 = x^2 - 2 x y + y^2 with x = v_j - c and
    y = o - c comes from matrix products. What cancellation may lose is added, so that no sum is too small.
    """

    moments: Array
    """(b, h, keys, 3 d + 1): x^2, x, 1 and |x| side by side, so that one matrix product adds up all."""
    y: Array
    """(b, h, rows, d): o - c."""
    kept: Array | None = None
    """(b, h, rows, keys): 1, and 0 where the weight drops out; c is 0 then. None: none does."""

    @classmethod
    def of(
        cls, v: npt.NDArray[np.float64], o: npt.NDArray[np.float64], kept: npt.NDArray[np.bool_] | None = None
    ) -> Distances:
        """`v` is (b, h, keys, d) and finite, `o` is (b, h, rows, d), both of a size whose squares do not overflow.

        `kept`: see there; `v` are the values as weights that do not drop out are multiplied by them.
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
        """Hardly more than sum w_j (v_j - o)^2; of weights that do not drop out."""
        d = self.y.shape[-1]
        sums = weights @ self.moments[..., : 2 * d + 1]
        return self._squared(sums[..., :d], sums[..., d : 2 * d], sums[..., 2 * d :])

    def root_of_squares(self, *errors: Array) -> Array:
        """Hardly more than the root of sum e_j^2 (v_j - o)^2, e_j^2 being the sum of the squares of these `errors`."""
        if self.kept is None:
            return np.sqrt(self.squared(_sum_of_squares(errors)))
        # Where a key that has nearly all of the weight drops out, squares of what is left are no float32.
        kept = [each * self.kept for each in errors]
        unit = np.maximum.reduce([each.max(axis=-1, keepdims=True) for each in kept])
        unit[unit == 0] = 1.0
        of_kept = unit * np.sqrt(self.squared(_sum_of_squares([each / unit for each in kept])))
        dropped = _sum_of_squares([each * (1 - self.kept) for each in errors]).sum(axis=-1, keepdims=True)
        both: Array = np.hypot(of_kept, np.abs(self.y) * np.sqrt(dropped))
        return both

    def absolute(self, weights: Array) -> Array:
        """At least sum w_j |v_j - o|: the smaller one of Cauchy's bound and of the triangle's over the centre."""
        d = self.y.shape[-1]
        kept, dropped = self._split(weights)
        sums = kept @ self.moments
        total = sums[..., 2 * d : 2 * d + 1]
        squared = self._squared(sums[..., :d], sums[..., d : 2 * d], total)
        smaller: Array = np.minimum(np.sqrt(squared) * np.sqrt(total), sums[..., 2 * d + 1 :] + np.abs(self.y) * total)
        return smaller + dropped * np.abs(self.y)

    def farthest(self) -> Array:
        """The largest |v_j - o| over all keys, also those that a row does not see."""
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
        """Weights of values, and the sum over those of what dropped out, (b, h, rows, 1)."""
        if self.kept is None:
            return weights, np.float32(0)
        dropped: Array = (weights * (1 - self.kept)).sum(axis=-1, keepdims=True)
        return weights * self.kept, dropped

    def _squared(self, xx: Array, x: Array, total: Array) -> Array:
        # An answer is a mean of values, so y^2 is at most the largest x^2; where weights drop out 0 is one, and c is 0.
        sums = xx + self.y * (self.y * total - 2 * x)
        squared: Array = np.maximum(sums, np.float32(0)) + np.float32(2.0**-20) * self._largest_square * total
        return squared


def _sum_of_squares(errors: Sequence[Array]) -> Array:
    squares = np.square(errors[0])
    for further in errors[1:]:
        squares += np.square(further)
    return squares
