"""The constant phi that `unified-max` subtracts from scores, the range in which it is right, and how to choose it.

    sum_j exp(s_j - phi) v_j / sum_j exp(s_j - phi)

is attention for any phi. In float32, with weights rounded to 16 bits, it is accurate if no weight overflows and the sum
of weights is not too small, which holds for a row with log-sum-exp L and largest score m if

    m - phi <= LARGEST_LOG_WEIGHT    and    L - phi >= SMALLEST_LOG_SUM
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SMALLEST_LOG_SUM = -4.0
"""Logarithm of the smallest sum of a row's weights, of which the smallest step of float16, 2^-24, is then 3.3e-6."""
LARGEST_LOG_WEIGHT = 11.0
"""Logarithm of the largest weight: e^11 is 59,874, and the largest float16 65,504."""


@dataclass(frozen=True)
class Constant:
    """A choice of phi, and the rows for which it is not safe."""

    phi: float
    unsafe_rows: float
    """Fraction of the rows that are computed again."""


def choose_constant(lse: npt.ArrayLike, largest_scores: npt.ArrayLike | None = None) -> Constant:
    """Return the phi for which fewest rows of a run are computed again; of several, the one farthest from both limits.

    `lse`: log-sum-exps of rows of that run, in any shape, such as the output `lse` of any variant. `largest_scores`:
    maxima of the same rows. If they are not known, lse is used in their place, which is never smaller. Rows that see no
    key, with an lse of -infinity, do not count. Raises `ValueError` if no row is left.
    """
    L = np.asarray(lse, np.float64).reshape(-1)
    m = L if largest_scores is None else np.asarray(largest_scores, np.float64).reshape(-1)
    finite = np.isfinite(L) & np.isfinite(m)
    if not finite.any():
        raise ValueError("no row has a finite log-sum-exp: there is nothing to choose a constant for")
    # A row is safe for phi from m - LARGEST_LOG_WEIGHT to L - SMALLEST_LOG_SUM.
    low, high = np.sort(m[finite] - LARGEST_LOG_WEIGHT), np.sort(L[finite] - SMALLEST_LOG_SUM)
    # Most rows are safe from the low limit of some row to the next high limit.
    safe = np.searchsorted(low, low, side="right") - np.searchsorted(high, low, side="left")
    next_high = high[np.minimum(np.searchsorted(high, low, side="left"), len(high) - 1)]
    width = np.where(safe == safe.max(), next_high - low, -np.inf)
    best = int(width.argmax())
    phi = float(np.float32((low[best] + next_high[best]) / 2))
    return Constant(phi, 1.0 - float(safe.max()) / len(low))
