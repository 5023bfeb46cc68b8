"""Derives the error budget of softmax: the largest errors that a correct kernel can have on the given inputs.

Each element of Y has two limits, a proved and an expected one. Notation: m = max x, p_j = exp(x_j - m) /
sum_k exp(x_k - m), in exact arithmetic from the stored inputs; n columns; u = 2^-24. Sizes of single roundings, and
their sources, are in `harness.model.arithmetic.rounding`.

**What a kernel computes.** With any loops, and whatever it subtracts, its result is

    y^_j = p_j exp(a_j) / sum_k p_k exp(b_k)                                                                     (1)

because common factors of all weights cancel. Let g_j be the number of distinct values of the row larger than x_j:

    |a_j| <= e_j + 5u g_j + division          e_j = 4u + argument (m - x_j) + frame (|x_j| + |m|)
    |b_k| <= e_k + 5u g_k + n addition

e_j is the error of the exponential and of its argument, including log2 e folded into both unless the variant declares
expf or __expf of x - m; it also covers exp(x) without the maximum. 5u g_j is the online softmax: an exponential and a
product each time the running maximum rises above x_j, along a row or when parts with separate maxima are combined
(Milakov and Gimelshein 2018, arXiv 1805.02867, equation 4). Each rise leads to a larger value, so there are at most
g_j, and their arguments add up to m - x_j; a factor exp(0) is 1. If functions are `fast`, that factor may have an
error, and g_j is n. The n additions may be in any order. Factors (1 + delta)^k are written as exp(k u) (Higham 2002,
Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1 and section 4.2); `SLACK` covers the difference.

**Proved.** Let B = log sum_k p_k e^|b_k|. The error of the logarithm of the denominator is at most B, since by Jensen's
inequality sum_k p_k |b_k| <= B. Hence

    |y^_j - p_j| <= p_j (exp(|a_j| + B) - 1)                                                                     (2)

plus underflow: of an exponential, a quotient, and the terms of the sum, each below the smallest normal float32, where
the sum is at least 1. The rounding of Y is added last. If the bound of a row is infinite, because log2 e x may overflow
in float32, any result is accepted.

**Expected.** Roundings of sums and of rescaling are assumed to be independent and of mean zero (Higham and Mary 2019,
SIAM J. Sci. Comput. 41, A2815): k of them sum to lambda sqrt(k) u, as in attention's budget. That does not hold if all
terms of a sum are equal and not 1, since each addition to the same binade then repeats its rounding: n remains. A
kernel with larger errors is suspicious but not proved wrong.

**Exact.** Suppose that exp(0) is 1 and additions round to nearest (functions `accurate` or `__expf`, sums `nearest`), c
columns have the maximum, c is a power of two, and adding the weights of all others to 1 has no effect. Then the sum is
c in any order, and Y is exactly 1 / c in those columns: rows of equal values, needles, single columns.

Rows whose answer is not finite have no budget; `oracle` defines their results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import (
    ARGUMENT,
    EXP,
    LAMBDA,
    SMALLEST_STEP,
    UNIT_ROUNDOFF,
    U,
    addition,
    division,
    frame,
)
from harness.model.array_types import Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance
from harness.operations.softmax.oracle import blocks_of
from harness.operations.softmax.problem import SoftmaxProblem

NUMERICS_USED = ("functions", "sums")
"""The fields of `Numerics` that errors of softmax depend on."""
SLACK = 1.01
"""Covers (1 + u)^k <= exp(k u (1 + u)), gamma_k <= k u / (1 - k u) for k up to 10^5, and roundings of this module."""
LARGEST_ARGUMENT = 104.0
"""exp(-104) is below the smallest float32, so smaller weights are 0."""
RESCALE = 5 * U
"""Error of an exponential and a product."""
ABSORBED = 2.0**-26
"""Adding this to a float32 of at least 1, rounded to nearest, has no effect."""
MOST_EQUAL = 2**14
"""Maximum c for which 1 / c is a normal float16."""
UNDERFLOW = SMALLEST_STEP["float32"]


def error_budget(
    problem: SoftmaxProblem,
    inputs: Mapping[str, np.ndarray],
    answer: Mapping[str, Float64Array],
    numerics: Numerics,
    part: Part = WHOLE,
) -> dict[str, Tolerance]:
    """Return the budget of Y for the given inputs and declared `numerics`; `answer` is the oracle's of the same part.

    Only the fields `NUMERICS_USED` of `numerics` have an effect.
    """
    Y = answer["Y"]
    allowed, expected = np.empty(Y.shape), np.empty(Y.shape)
    with np.errstate(all="ignore"):
        for where, x in blocks_of(problem, inputs["X"], part):
            rows = _Rows.of(x, Y[where], numerics)
            proved, random = (rows.stored(error, problem.dtype) for error in (rows.proved(), rows.expected()))
            proved[rows.exact()] = 0.0
            no_number = np.isnan(Y[where])
            proved[no_number] = random[no_number] = np.nan
            allowed[where], expected[where] = proved, np.fmin(random, proved)
    return {"Y": Tolerance(allowed, expected)}


@dataclass(frozen=True)
class _Rows:
    """Quantities of the derivation for some rows: (rows, columns), or (rows, 1) for quantities of a row."""

    numerics: Numerics
    p: Float64Array
    weight: Float64Array
    """exp(x - m)."""
    is_max: npt.NDArray[np.bool_]
    exponential: Float64Array
    """e_j."""
    rises: Float64Array
    """g_j."""

    @classmethod
    def of(cls, x: Float64Array, p: Float64Array, numerics: Numerics) -> _Rows:
        m = x.max(axis=1, keepdims=True)
        max_minus_x = m - x
        exponential = EXP + ARGUMENT[numerics.functions] * np.minimum(max_minus_x, LARGEST_ARGUMENT)
        if frame(numerics):
            # exp(-inf) is 0, without an error.
            exponential = exponential + frame(numerics) * (np.where(np.isneginf(x), 0.0, np.abs(x)) + np.abs(m))
        rises = np.full(x.shape, float(x.shape[1])) if numerics.functions == "fast" else _larger_values(x)
        return cls(numerics, p, np.exp(-max_minus_x), x == m, exponential, rises)

    def proved(self) -> Float64Array:
        """Return the bound (2) on the error of Y before it is stored."""
        n = self.p.shape[1]
        own = self.exponential + RESCALE * self.rises
        in_sum = SLACK * (own + n * addition(self.numerics))
        denominator = np.log1p(_sum(_times(self.p, np.expm1(in_sum))))
        return _times(self.p, np.expm1(SLACK * (own + division(self.numerics)) + denominator))

    def expected(self) -> Float64Array:
        """Return the expected error of Y before it is stored, assuming random roundings."""
        n = np.full((len(self.p), 1), float(self.p.shape[1]))
        repeated = np.all(self.is_max, axis=1, keepdims=True) & (self.numerics.functions == "fast")
        random = np.where(repeated | (self.numerics.sums != "nearest"), n, _random(n))
        own = self.exponential + RESCALE * _random(self.rises)
        denominator = _sum(_times(self.p, own)) + addition(self.numerics) * random
        return _times(self.p, np.expm1(own + division(self.numerics) + denominator))

    def stored(self, error: Float64Array, dtype: str) -> Float64Array:
        """Add the errors of underflow and of the rounding of Y."""
        n = self.p.shape[1]
        error = error + UNDERFLOW * (2 + n * self.p)
        return error + np.maximum(SLACK * UNIT_ROUNDOFF[dtype] * (self.p + error), SMALLEST_STEP[dtype])

    def exact(self) -> npt.NDArray[np.bool_]:
        """Return where a correct kernel computes exactly the answer, rounded to nearest."""
        if self.numerics.functions == "fast" or self.numerics.sums != "nearest":
            return np.zeros(self.p.shape, np.bool_)
        count = np.count_nonzero(self.is_max, axis=1, keepdims=True)
        # The error of an exponential is small compared to the factor 2.
        others = 2 * _sum(np.where(self.is_max, 0.0, self.weight))
        power_of_two = (count > 0) & (count & (count - 1) == 0) & (count <= MOST_EQUAL)
        exact: npt.NDArray[np.bool_] = self.is_max & power_of_two & (others <= ABSORBED)
        return exact


def _larger_values(x: Float64Array) -> Float64Array:
    """Return for each element how many distinct values of its row are larger."""
    order = np.argsort(-x, axis=1)
    falling = np.take_along_axis(x, order, axis=1)
    larger = np.zeros(x.shape)
    larger[:, 1:] = np.cumsum(falling[:, 1:] < falling[:, :-1], axis=1)
    rises = np.empty(x.shape)
    np.put_along_axis(rises, order, larger, axis=1)
    return rises


def _random(steps: Float64Array) -> Float64Array:
    """Return the expected sum of `steps` roundings of mean zero, in units of one."""
    return np.minimum(LAMBDA * np.sqrt(steps), steps)


def _times(p: Float64Array, growth: Float64Array) -> Float64Array:
    """Multiply a weight by a bound. 0 times infinity becomes infinity, so that any result is accepted."""
    product = p * growth
    return np.where(np.isnan(product), np.inf, product)


def _sum(x: Float64Array) -> Float64Array:
    total: Float64Array = x.sum(axis=1, keepdims=True)
    return total
