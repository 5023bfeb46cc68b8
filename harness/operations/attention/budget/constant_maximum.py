"""What a constant phi in place of each row's maximum adds to the error budget of attention.

Notation as in `error_budget`: m = max s, l = sum exp(s_j - phi), so log l = lse - phi. In exact arithmetic, the
constant cancels. In float32:

- The argument s_j - phi of an exponential is at most |m - phi| farther from 0 than s_j - m, so each a_j and b_j gets
  |m - phi| times the error of an exponential per unit of its argument. The same holds for log l in lse.
- A weight relative to the sum is exp(s_j - phi) / l. The absolute errors of small weights, a step of the dtype of P and
  underflow, are therefore divided by l instead of a sum of at least 1: they grow by 1 / l if l < 1.
- Weights are at most e^b instead of 1, so the sum over V may overflow if n max |v| e^b does (`exact_answers`).

A row whose log l is below a, or one of whose scores exceeds phi + b, is computed with its maximum, and adds nothing.
Near these limits a kernel may do either.

Source of the constant: Hong et al. 2023, "FlashDecoding++", arXiv 2311.01282, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.array_types import Float64Array

Array = npt.NDArray[np.float32]

NEAR = 0.125
"""Logarithms so near to a limit may lie on either side of it: more than the errors of scores of 16-bit elements."""


@dataclass(frozen=True)
class Shift:
    """How far what a kernel subtracts is from the maximum, for rows of shape (b, h, rows, 1)."""

    distance: Array
    """|m - phi|; 0 in rows that use their maximum."""
    growth: Array
    """max(1, 1 / l); 1 in rows that use their maximum."""


def shift_of(constant: tuple[float, float, float] | None, largest: Array, lse: Float64Array) -> Shift:
    """Return the shift of rows with these maxima and log-sum-exps, (b, h, rows, 1).

    `constant` is (phi, a, b), or None if every row uses its maximum.
    """
    if constant is None:
        return Shift(np.zeros_like(largest), np.ones_like(largest))
    phi, least, most = constant
    log_sum = lse - phi
    uses_constant = np.isfinite(log_sum) & (log_sum >= least - NEAR) & (largest - phi <= most + NEAR)
    distance = np.where(uses_constant, np.abs(largest - phi), 0.0)
    growth = np.exp(np.where(uses_constant, np.maximum(-log_sum, 0.0), 0.0))
    return Shift(distance.astype(np.float32), growth.astype(np.float32))
