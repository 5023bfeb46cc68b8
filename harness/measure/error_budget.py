"""PLACEHOLDER"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measure.distances import Distances
from harness.measure.exact_answers import nothing_but_the_answer, nothing_promised
from harness.measure.rounding import LAMBDA, SMALLEST_STEP, Roundings, U
from harness.oracle import Block, Reference, blocks_of
from harness.problem import Problem
from harness.variant import Numerics

Float64Array = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]

ANY_KERNEL = Numerics()
"""Nothing is declared."""
SLACK = np.float32(1.01)
"""Covers (1 + u)^k <= exp(k u (1 + u)), gamma_k <= k u / (1 - k u) for k up to 10^5, and the rounding in here."""
SMALLEST = SMALLEST_STEP["float32"]
LARGEST_ARGUMENT = np.float32(104)
"""exp(-104) is below the smallest float32: a weight that is further down is 0 in either sum."""


@dataclass(frozen=True)
class Budget:
    """The largest errors that a correct kernel may make, element by element, in float64.

    0 where nothing but the answer, rounded to nearest, will do; inf where nothing is promised, not even a number; NaN
    where the answer is not finite.
    """

    O: Float64Array
    """Shape (batch, heads, q_len, head_dim)."""
    lse: Float64Array
    """Shape (batch, heads, q_len)."""
    expected_O: Float64Array
    """What a correct kernel's error is expected to stay below, as if roundings were random; at most `O`."""
    expected_lse: Float64Array
    """The same for lse."""


def error_budget(
    problem: Problem, inputs: Mapping[str, np.ndarray], reference: Reference, numerics: Numerics = ANY_KERNEL
) -> Budget:
    """The budget for these very inputs; `reference` is the oracle's answer to them, `numerics` what is declared."""
    O, expected_O = np.empty(problem.q_shape), np.empty(problem.q_shape)
    lse, expected_lse = np.empty(problem.lse_shape), np.empty(problem.lse_shape)
    with np.errstate(all="ignore"):
        for block in blocks_of(problem, inputs):
            at = block.where
            rows = _Rows.of(problem, block, reference, numerics)
            stored = _Stored.of(block, reference, rows)
            O_error, log_error = _proved(rows)
            O[at], lse[at] = stored.O(O_error), stored.lse(log_error)
            O_error, log_error = _expected(rows)
            expected_O[at], expected_lse[at] = stored.O(O_error), stored.lse(log_error)

            O[at][nothing_but_the_answer(problem, block, rows.p, rows.score_error, numerics)] = 0.0
            open_O, open_lse = nothing_promised(problem, block, np.abs(reference.O[at]) + O[at], numerics)
            O[at][open_O] = np.inf
            lse[at][open_lse] = np.inf
    return Budget(O, lse, np.fmin(expected_O, O), np.fmin(expected_lse, lse))


@dataclass(frozen=True)
class _Rows:
    """Rows of a problem in the letters of the derivation, in float32: a budget needs three digits, and speed.

    Axes: (b, h, rows, keys), or (b, h, rows, 1) for what a row has once. Values and answers are divided by `unit`.
    """

    rounding: Roundings
    one_score: bool
    n: Array
    """Keys that the row sees, (rows, 1)."""
    m: Array
    """|m|."""
    log_p: Array
    p: Array
    """0 at keys that the row does not see; other terms are finite there."""
    s: Array
    """|s_j|."""
    below: Array
    """m - s_j."""
    dot: Array
    """sigma_j: error of the score, its storage aside."""
    stored: Array | float
    """Error of storing the score."""
    expected_dot: Array
    """The same in the expected tier."""
    unit: Float64Array
    """(b, h, 1, d): the largest |v_j|."""
    o: Array
    """|o|, (b, h, rows, d)."""
    distances: Distances

    @classmethod
    def of(cls, problem: Problem, block: Block, reference: Reference, numerics: Numerics) -> _Rows:
        rounding = Roundings.of(problem, numerics)
        n = block.keys_seen[:, None]
        m, scores = block.largest_scores()[..., None], block.scores
        log_p = scores - np.where(n == 0, 0.0, reference.lse[block.where][..., None])
        finite = np.isfinite(scores)
        if not finite.all():
            scores = np.where(finite, scores, m)
        s = np.abs(scores, dtype=np.float32, casting="same_kind")
        dot, expected_dot = _score_errors(problem, block, s, rounding)
        v = _finite(block.v)
        unit = np.abs(v).max(axis=-2, keepdims=True)
        unit[unit == 0] = 1.0
        o = reference.O[block.where] / unit
        return cls(
            rounding=rounding,
            one_score=numerics.one_score,
            n=n.astype(np.float32),
            m=np.abs(m, dtype=np.float32, casting="same_kind"),
            log_p=log_p.astype(np.float32),
            p=np.exp(log_p, dtype=np.float32, casting="same_kind"),
            s=s,
            below=np.subtract(m, scores, dtype=np.float32, casting="same_kind"),
            dot=dot,
            stored=rounding.scores * (s + dot) + rounding.scores_step if rounding.scores else 0.0,
            expected_dot=expected_dot,
            unit=unit,
            o=np.abs(o, dtype=np.float32, casting="same_kind"),
            distances=Distances.of(v / unit, o),
        )

    @property
    def score_error(self) -> Array:
        return self.dot + self.stored


def _score_errors(problem: Problem, block: Block, s: Array, rounding: Roundings) -> tuple[Array, Array]:
    """The errors of tau q.k in the two tiers, its storage aside."""
    q, k = (_finite(x).astype(np.float32) for x in (block.q, block.k))
    d, tau = problem.head_dim, np.float32(abs(problem.tau))
    terms = np.float32(d + rounding.score_roundings)
    proved = rounding.addition * terms * (tau * (np.abs(q) @ np.abs(k).mT)) + np.float32(d * SMALLEST) * tau
    square, squares = s * s, tau * tau * ((q * q) @ (k * k).mT)
    expected = rounding.expected_sum(terms) * np.sqrt(square + squares)
    # Cauchy's equality: all products of a sum are equal. Then so are its roundings, and nothing is random about them.
    repeating = square > np.float32(1 - 1e-4) * d * squares
    if repeating.any():
        expected = np.where(repeating, proved, expected)
    if problem.causal:
        # A key that a row does not see, however large, is no concern of that row's.
        proved, expected = (np.where(block.visible, error, np.float32(0)) for error in (proved, expected))
    return proved, expected


def _finite(x: Float64Array) -> Float64Array:
    """Rows that see a key or value that is not finite have no budget: any number will do in its place."""
    finite = np.isfinite(x)
    return x if finite.all() else np.where(finite, x, 0.0)


def _proved(rows: _Rows) -> tuple[Array, Array]:
    """Bounds on the error of O, in units of V, and of log(sum exp), before either is stored."""
    r, p, n = rows.rounding, rows.p, rows.n
    score_error = rows.score_error
    largest_score_error = _max(score_error)
    argument = np.minimum(rows.below + score_error + largest_score_error, LARGEST_ARGUMENT)
    apart = r.argument * argument + (r.exp + n * (r.rescale + r.addition))
    if r.frame:
        apart += r.frame * (rows.s + rows.m)
    if not rows.one_score:
        apart += rows.dot
    shared = score_error if rows.one_score else rows.stored
    total = shared + apart
    weight_error, factor = _perturbed(rows, SLACK * (total + r.division))
    most_apart = _max(apart)
    log_error = np.fmin(np.log1p(_sum(weight_error)), SLACK * (largest_score_error + most_apart))

    hull = np.expm1(SLACK * (2 * most_apart + r.division + r.weights)) + 2 * n * r.weights_step
    separate = 2 * apart + r.division
    separate *= p
    if r.weights:
        rounded = np.minimum(p, np.maximum(r.weights * p, r.weights_step))
        weight_error += rounded * factor
        separate += rounded
    O_error = rows.distances.absolute(weight_error) + rows.o * _sum(separate * factor)
    return np.fmin(O_error * np.exp(SLACK * _sum(p * total)), rows.distances.farthest() + hull), log_error


def _expected(rows: _Rows) -> tuple[Array, Array]:
    """The same as if roundings were random."""
    r, p, n = rows.rounding, rows.p, rows.n
    sums = r.expected_sum(n)
    exp_error = (r.argument + U) * np.minimum(rows.below, LARGEST_ARGUMENT) + r.exp
    if r.frame:
        exp_error += r.frame * (rows.s + rows.m)
    variance = np.square(rows.expected_dot) + np.square(LAMBDA * exp_error)
    variance += 2 * sums * sums + LAMBDA**2 * r.rescale**2 * n
    if r.scores:
        variance += (LAMBDA * r.scores) ** 2 * np.square(rows.s)
    weight_error, factor = _perturbed(rows, np.sqrt(variance))
    total = _sum(weight_error)

    squares = np.square(weight_error)
    separate = exp_error if rows.one_score else exp_error + rows.expected_dot
    separate = 2 * _sum(p * separate) + 2 * sums + LAMBDA * U * np.sqrt(2 * n) + r.division
    if r.weights:
        rounded = np.minimum(p, np.maximum(r.weights * p, r.weights_step))
        squares += np.square(LAMBDA * rounded * factor)
        separate += _sum(rounded)
    O_error = np.sqrt(rows.distances.squared(squares)) + rows.o * separate
    return O_error * np.exp(total), np.log1p(total)


def _perturbed(rows: _Rows, x: Array) -> tuple[Array, Array]:
    """At least p (e^x - 1), and e^x, for x >= 0."""
    if x.max() < 1:
        # Up to 1 this is e^x - 1 or up to 2 % more, and much cheaper.
        growth = x * (1 + x * (0.5 + 0.25 * x))
        return rows.p * growth, 1 + growth
    # p may underflow while e^x overflows.
    return np.where(x < 1, rows.p * np.expm1(x), np.exp(rows.log_p + x)), np.exp(x)


def _max(x: Array) -> Array:
    largest: Array = x.max(axis=-1, keepdims=True)
    return largest


def _sum(x: Array) -> Array:
    # A product with ones is several times as fast as a sum along the last axis.
    total: Array = x @ np.ones((x.shape[-1], 1), np.float32)
    return total


@dataclass(frozen=True)
class _Stored:
    """What storing adds to an error: underflow, the rounding of the output, the logarithm."""

    rows: _Rows
    answer: Float64Array
    lse_answer: Float64Array

    @classmethod
    def of(cls, block: Block, reference: Reference, rows: _Rows) -> _Stored:
        return cls(rows, reference.O[block.where], reference.lse[block.where])

    def O(self, error: Array) -> Float64Array:
        """Of O, from its error in units of V."""
        r, n, o = self.rows.rounding, self.rows.n, np.abs(self.answer)
        # Weights are at most 1 and one of them is 1, so the denominator is at least 1 and what is too small costs this.
        total = error * self.rows.unit + SMALLEST * n * (4 + self.rows.unit + o)
        total += np.maximum(SLACK * r.output * (o + total), r.output_step)
        total[~np.isfinite(self.answer)] = np.nan
        total[..., n[:, 0] == 0, :] = 0.0
        return total

    def lse(self, error: Array) -> Float64Array:
        """Of lse, from the error of log(sum exp)."""
        r, n, m = self.rows.rounding, self.rows.n[:, 0], self.rows.m[..., 0]
        total: Float64Array = error[..., 0] + r.log * np.abs(self.lse_answer) + r.log_absolute
        total += r.log_of_sum * np.log(np.maximum(n, 1)) + 2 * r.frame * m
        total[~np.isfinite(self.lse_answer)] = np.nan
        total[..., n == 0] = 0.0
        return total
