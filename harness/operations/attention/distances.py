"""How far values lie from the answer, added up over keys, without an array of (rows, keys, head_dim)."""

from __future__ import annotations

from dataclasses import dataclass

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

    @classmethod
    def of(cls, v: npt.NDArray[np.float64], o: npt.NDArray[np.float64]) -> Distances:
        """`v` is (b, h, keys, d) and finite, `o` is (b, h, rows, d), both of a size whose squares do not overflow."""
        centre = v.mean(axis=-2, keepdims=True)
        x = (v - centre).astype(np.float32)
        d = x.shape[-1]
        moments = np.empty((*x.shape[:-1], 3 * d + 1), np.float32)
        np.multiply(x, x, out=moments[..., :d])
        moments[..., d : 2 * d] = x
        moments[..., 2 * d] = 1
        np.abs(x, out=moments[..., 2 * d + 1 :])
        return cls(moments, (o - centre).astype(np.float32))

    def squared(self, weights: Array) -> Array:
        """Hardly more than sum w_j (v_j - o)^2."""
        d = self.y.shape[-1]
        sums = weights @ self.moments[..., : 2 * d + 1]
        return self._squared(sums[..., :d], sums[..., d : 2 * d], sums[..., 2 * d :])

    def absolute(self, weights: Array) -> Array:
        """At least sum w_j |v_j - o|: the smaller one of Cauchy's bound and of the triangle's over the centre."""
        d = self.y.shape[-1]
        sums = weights @ self.moments
        total = sums[..., 2 * d : 2 * d + 1]
        squared = self._squared(sums[..., :d], sums[..., d : 2 * d], total)
        smaller: Array = np.minimum(np.sqrt(squared * total), sums[..., 2 * d + 1 :] + np.abs(self.y) * total)
        return smaller

    def farthest(self) -> Array:
        """The largest |v_j - o| over all keys, also those that a row does not see."""
        d = self.y.shape[-1]
        x = self.moments[..., d : 2 * d]
        above, below = x.max(axis=-2, keepdims=True) - self.y, self.y - x.min(axis=-2, keepdims=True)
        farthest: Array = np.maximum(above, below)
        return farthest

    def _squared(self, xx: Array, x: Array, total: Array) -> Array:
        # An answer is a mean of values, so y^2 is at most the largest x^2.
        largest = self.moments[..., : self.y.shape[-1]].max(axis=-2, keepdims=True)
        sums = xx + self.y * (self.y * total - 2 * x)
        squared: Array = np.maximum(sums, np.float32(0)) + np.float32(2.0**-20) * largest * total
        return squared
