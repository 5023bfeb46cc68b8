"""The gradient of sinks, and its error budget.

A sink is a key of each row of its head with the score sink[h] and no value. Its weight in row i is exp(sink - lse_i),
and since dP of a value of zeros is 0, its dS is -exp(sink - lse_i) delta_i (`oracle`). The gradient is the sum over the
rows of the head, in all sequences:

    dsinks[h] = -sum_i w_i delta_i              w_i = exp(sinks[h] - lse_i)

Dropout changes only O, and so delta: whether the sink is dropped or not, its value is 0.
In a row that sees no key, O, and with it delta, is 0.

**Budget.** With the constants of `error_budget`,

    w^_i = w_i exp(e_i)     |e_i| <= argument |sink - lse_i| + frame (|sink| + |lse_i|) + 4u
    delta^_i = delta_i + h_i

so that a product of both is off by at most

    w (e^|e| - 1) |delta| + w e^|e| (|h| + 2u (|delta| + |h|))                                                  (1)

and a sum of n such products, in any order, by g_(n + 1) of the sum of their magnitudes. Expected errors are the same
with independent h, which add up in squares; e is not taken for random, since rows with equal lse have equal errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import LAMBDA, U
from harness.model.array_types import Arrays, Float64Array
from harness.model.operation import WHOLE, Part
from harness.operations.attention.score_terms import SINKS
from harness.operations.attention_backward.problem import GRADIENT_OF, BackwardProblem
from harness.operations.attention_backward.rounding_sizes import ABOUT_EQUAL

DSINKS = GRADIENT_OF + SINKS


@dataclass(frozen=True)
class SinkRows:
    """All rows of some heads, (b, h, r) unless stated otherwise. Nonfinite numbers are replaced by 0."""

    sinks: Float64Array
    """(h, 1)."""
    lse: Float64Array
    do: Float64Array
    """(b, h, r, d)."""
    o: Float64Array
    """(b, h, r, d)."""
    nonfinite: npt.NDArray[np.bool_]
    """Rows that have a nonfinite number: any result is right for their head."""

    @classmethod
    def of(cls, problem: BackwardProblem, inputs: Arrays, part: Part) -> SinkRows:
        """Return the rows of the part's heads."""
        (heads,) = part.of(DSINKS) if part is not WHOLE else (slice(None),)
        lse, do, o = (np.asarray(inputs[name])[:, heads].astype(np.float64) for name in ("lse", "dO", "O"))
        sinks = inputs[SINKS][heads].astype(np.float64)[:, None]
        # A row without keys has an lse of -inf if its head has no sink.
        blind = np.isneginf(lse) & np.isneginf(sinks)
        finite = (np.isfinite(do) & np.isfinite(o)).all(axis=-1) & (np.isfinite(lse) | blind)
        finite &= np.isfinite(sinks) | np.isneginf(sinks)
        do, o = (np.where(np.isfinite(x), x, 0.0) for x in (do, o))
        return cls(sinks, np.where(np.isfinite(lse), lse, 0.0), do, o, ~finite)

    @property
    def weights(self) -> Float64Array:
        """W."""
        with np.errstate(over="ignore"):
            return np.where(self.nonfinite, 0.0, np.exp(self.sinks - self.lse))

    @property
    def delta(self) -> Float64Array:
        """Delta = dO.O."""
        sums: Float64Array = (self.do * self.o).sum(axis=-1)
        return sums


def sink_gradients(problem: BackwardProblem, inputs: Arrays, part: Part = WHOLE) -> Float64Array:
    """Return dsinks of the part's heads, (h,)."""
    rows = SinkRows.of(problem, inputs, part)
    sums: Float64Array = -(rows.weights * rows.delta).sum(axis=(0, 2))
    return sums


@dataclass(frozen=True)
class SinkErrors:
    """Errors of dsinks before its rounding, (h,) each."""

    proved: Float64Array
    expected: Float64Array
    nonfinite: npt.NDArray[np.bool_]
    """Heads of which any result is right."""


def sink_errors(
    rows: SinkRows,
    argument: float,
    frame: float,
    exponential: float,
    delta_errors: tuple[Float64Array, Float64Array],
    sum_errors: tuple[float, float],
    tiny: float,
) -> SinkErrors:
    """Return the errors of a kernel.

    `argument`, `frame` and `exponential`: as in |e|. `delta_errors`: h of each row, proved and expected, and
    `sum_errors`: that of a sum of so many terms, relative to magnitudes, likewise. `tiny`: what is flushed to zero.
    """
    w, delta = rows.weights, np.abs(rows.delta)
    sinks = np.where(np.isfinite(rows.sinks), rows.sinks, 0.0)
    distances = np.where(w > 0, np.abs(sinks - rows.lse), 0.0)
    exponent = argument * distances + frame * (np.abs(sinks) + np.abs(rows.lse)) + exponential
    off = np.where(np.isneginf(rows.sinks), 0.0, w * np.expm1(exponent) + tiny)
    of_delta, of_delta_expected = delta_errors
    products = off * delta + (w + off) * (of_delta + 2 * U * (delta + of_delta)) + tiny
    proved = products.sum(axis=(0, 2)) + sum_errors[0] * (w * delta + products).sum(axis=(0, 2))
    random = np.square((w + off) * of_delta_expected) + np.square(LAMBDA * 2 * U * w * delta)
    expected = (off * delta + tiny).sum(axis=(0, 2)) + np.sqrt(random.sum(axis=(0, 2)))
    # If summands have about the same size and sign, many may be equal, and rounded alike.
    total, squares = (w * rows.delta).sum(axis=(0, 2)), np.square(w * delta).sum(axis=(0, 2))
    alike = np.square(total) > ABOUT_EQUAL * w.shape[0] * w.shape[2] * squares
    expected += np.where(alike, *sum_errors) * (w * delta).sum(axis=(0, 2))
    return SinkErrors(proved, expected, np.any(rows.nonfinite, axis=(0, 2)))
