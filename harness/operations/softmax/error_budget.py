"""How far off may a correct kernel be on these very inputs? Two limits for every element of Y, derived here.

Notation: m = max x, p_j = exp(x_j - m) / sum_k exp(x_k - m), in exact arithmetic from the stored inputs; n columns;
u = 2^-24. How large single roundings are, and where they come from, is in `harness.model.arithmetic.rounding`.

**What a kernel computes.** Whatever its loops, and whatever it subtracts, it ends with

    y^_j = p_j exp(a_j) / sum_k p_k exp(b_k)                                                                     (1)

for what all weights have in common cancels. With g_j, how many distinct values of the row are larger than x_j,

    |a_j| <= e_j + 5u g_j + division          e_j = 4u + argument (m - x_j) + frame (|x_j| + |m|)
    |b_k| <= e_k + 5u g_k + n addition

e_j is the exponential: its own error, its argument's, and, where a variant does not say that it computes expf or __expf
of x - m, what log2 e folded into both costs; exp(x) without the maximum is within that too. 5u g_j is the online
softmax, an exponential and a product each time that the running maximum rises over x_j, along a row or where parts with
maxima of their own are put together (Milakov and Gimelshein 2018, arXiv 1805.02867, equation 4): each time to a larger
value, so at most g_j times, and the arguments add up to m - x_j; a factor exp(0) is 1. Where functions are `fast` that
factor may be off as well, and g_j is n. n additions come in any order. Factors (1 + delta)^k are written as exp(k u)
(Higham 2002, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1 and section 4.2); `SLACK` covers the
difference.

**Proved.** With B = log sum_k p_k e^|b_k|, the logarithm of the denominator is off by at most B either way, for by
Jensen's inequality sum_k p_k |b_k| <= B. Hence

    |y^_j - p_j| <= p_j (exp(|a_j| + B) - 1)                                                                     (2)

and besides what underflows: an exponential, a quotient, and the terms of the sum, each below the smallest normal
float32 and the sum at least 1. At last the rounding of Y. A row whose bound is infinite, because log2 e x may leave
float32 there, has nothing promised.

**Expected.** Roundings of sums and of rescaling taken as independent and of mean zero (Higham and Mary 2019, SIAM J.
Sci. Comput. 41, A2815): k of them come to lambda sqrt(k) u, as in attention's budget. That does not hold where all
terms of a sum are equal and not 1, for then each addition to the same binade repeats its rounding: there n stays.
A kernel that goes beyond is suspicious and not proved wrong.

**Exact.** Where exp(0) is 1 and additions round to nearest (functions `accurate` or `__expf`, sums `nearest`), let c
columns have the maximum, c a power of two, and let the weights of all others together be too small to change a 1. Then
the sum is c in any order and Y is 1 / c in those columns, bit for bit: rows of equal values, needles, single columns.

Rows whose answer is not finite have no budget but a contract: see `oracle`.
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
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance
from harness.operations.softmax.oracle import blocks_of
from harness.operations.softmax.problem import SoftmaxProblem

Float64Array = npt.NDArray[np.float64]

NUMERICS_USED = ("functions", "sums")
"""The fields of `Numerics` that errors of softmax depend on."""
SLACK = 1.01
"""Covers (1 + u)^k <= exp(k u (1 + u)), gamma_k <= k u / (1 - k u) for k up to 10^5, and the rounding in here."""
LARGEST_ARGUMENT = 104.0
"""exp(-104) is below the smallest float32: a weight that is further down is 0."""
RESCALE = 5 * U
"""An exponential and a product."""
ABSORBED = 2.0**-26
"""A float32 of at least 1 does not change when this much is added, rounded to nearest."""
MOST_EQUAL = 2**14
"""1 / c is a normal float16 up to here."""
UNDERFLOW = SMALLEST_STEP["float32"]


def error_budget(
    problem: SoftmaxProblem,
    inputs: Mapping[str, np.ndarray],
    answer: Mapping[str, Float64Array],
    numerics: Numerics,
    part: Part = WHOLE,
) -> dict[str, Tolerance]:
    """The budget of Y for these very inputs, where `numerics` is declared; `answer` is the oracle's to the same part.

    It depends on the fields `NUMERICS_USED` of `numerics`: there are neither scores nor values.
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
    """Some rows in the letters of the derivation: (rows, columns), or (rows, 1) for what a row has once."""

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
        below = m - x
        exponential = EXP + ARGUMENT[numerics.functions] * np.minimum(below, LARGEST_ARGUMENT)
        if frame(numerics):
            # exp(-inf) is 0, without an error.
            exponential = exponential + frame(numerics) * (np.where(np.isneginf(x), 0.0, np.abs(x)) + np.abs(m))
        rises = np.full(x.shape, float(x.shape[1])) if numerics.functions == "fast" else _larger_values(x)
        return cls(numerics, p, np.exp(-below), x == m, exponential, rises)

    def proved(self) -> Float64Array:
        """(2), before Y is stored."""
        n = self.p.shape[1]
        own = self.exponential + RESCALE * self.rises
        in_sum = SLACK * (own + n * addition(self.numerics))
        denominator = np.log1p(_sum(_times(self.p, np.expm1(in_sum))))
        return _times(self.p, np.expm1(SLACK * (own + division(self.numerics)) + denominator))

    def expected(self) -> Float64Array:
        """The error of Y before it is stored, as if roundings were random."""
        n = np.full((len(self.p), 1), float(self.p.shape[1]))
        repeated = np.all(self.is_max, axis=1, keepdims=True) & (self.numerics.functions == "fast")
        random = np.where(repeated | (self.numerics.sums != "nearest"), n, _random(n))
        own = self.exponential + RESCALE * _random(self.rises)
        denominator = _sum(_times(self.p, own)) + addition(self.numerics) * random
        return _times(self.p, np.expm1(own + division(self.numerics) + denominator))

    def stored(self, error: Float64Array, dtype: str) -> Float64Array:
        """With what underflows, and the rounding of Y."""
        n = self.p.shape[1]
        error = error + UNDERFLOW * (2 + n * self.p)
        return error + np.maximum(SLACK * UNIT_ROUNDOFF[dtype] * (self.p + error), SMALLEST_STEP[dtype])

    def exact(self) -> npt.NDArray[np.bool_]:
        """Where nothing but the answer, rounded to nearest, will do."""
        if self.numerics.functions == "fast" or self.numerics.sums != "nearest":
            return np.zeros(self.p.shape, np.bool_)
        count = np.count_nonzero(self.is_max, axis=1, keepdims=True)
        # An exponential that is off by some u is little beside the factor 2.
        others = 2 * _sum(np.where(self.is_max, 0.0, self.weight))
        power_of_two = (count > 0) & (count & (count - 1) == 0) & (count <= MOST_EQUAL)
        exact: npt.NDArray[np.bool_] = self.is_max & power_of_two & (others <= ABSORBED)
        return exact


def _larger_values(x: Float64Array) -> Float64Array:
    """How many distinct values of its row are larger than each element."""
    order = np.argsort(-x, axis=1)
    falling = np.take_along_axis(x, order, axis=1)
    larger = np.zeros(x.shape)
    larger[:, 1:] = np.cumsum(falling[:, 1:] < falling[:, :-1], axis=1)
    rises = np.empty(x.shape)
    np.put_along_axis(rises, order, larger, axis=1)
    return rises


def _random(steps: Float64Array) -> Float64Array:
    """What so many roundings of mean zero come to, in units of one."""
    return np.minimum(LAMBDA * np.sqrt(steps), steps)


def _times(p: Float64Array, growth: Float64Array) -> Float64Array:
    """A weight that underflows, times a bound that overflows, is no number: then nothing is promised."""
    product = p * growth
    return np.where(np.isnan(product), np.inf, product)


def _sum(x: Float64Array) -> Float64Array:
    total: Float64Array = x.sum(axis=1, keepdims=True)
    return total
