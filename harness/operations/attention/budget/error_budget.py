"""How far off may a correct kernel be on these very inputs? Two limits for every output element, derived here.

Notation: s_j = tau q.k_j, m = max s, p = softmax(s), o = sum p_j v_j, in exact arithmetic from the stored inputs; n
keys are seen; u = 2^-24. How large single roundings are, and what a variant may declare of them, is in `rounding`.

**What a kernel computes.** Whatever its loops, it ends with

    o^ = sum p_j exp(c_j + a_j) v_j / sum p_j exp(c_j + b_j)                                                     (1)

c_j is the error of the score that both sums see, a_j and b_j are what each sum does for itself:

    |c_j| <= sigma_j + stored_j
        sigma_j = (d + 2) u |tau| sum_i |q_i k_ji|      d products and sums in any order, with or without fused
                                                        multiply-add; the scale's own rounding, and its product
                + ((1 + u_16)^r - 1) |tau| sum_i |q_i k_ji|     where Q is scaled before the product, each element
                                                        rounded to 16 bits r times (`scaled_q`); what is too small
                                                        to be normal, an absolute step times sum_i |k_ji| besides
        stored_j = u_16 (|s_j| + sigma_j)               where S is stored in 16 bits
    |a_j|, |b_j| <= u (m - s_j + |c_j| + max |c|)       the arguments of exponentials, rounded
        + 4u + n 5u                                     the exponential; rescaling at every key: exponential, product
        + n u                                           a sum over n keys in any order
    |a_j| also <= ... + 2u                              1 / l, and its product

and P's own rounding where it is stored. What scores become after that, a cap, ALiBi and sinks, changes c_j: see
`score_errors`. Where weights drop out, each row has values of its own: see `distances`. What all weights have in common
cancels in (1): any number may be subtracted from the scores, so the error of the computed maximum is none. The
arguments of all exponentials that a key's weight meets (its own, then one per rise of the running maximum, or where
parts with maxima of their own are put together) add up to its computed distance from the maximum, whatever the tiles:
that is why one term in m - s_j is enough for any loop order. Each of them but the first leads to another key with a
larger score, so there are at most n. Factors (1 + delta)^k are written as exp(k u) (Higham 2002, Accuracy and Stability
of Numerical Algorithms, 2nd ed., lemma 3.1 and section 3.1 on inner products in any order); `SLACK` covers the
difference. Where a variant does not declare `one_score`, sigma_j belongs to a_j and b_j, but for Q's scaling: a rounded
Q is the same however often it is multiplied.

**Proved.** sum p_j (v_j - o) = 0, hence, with x_j = |c_j| + |a_j| and y_j = |a_j| + |b_j|,

    o^ - o = (sum p_j (e^(c_j + a_j) - 1) (v_j - o) + o sum p_j e^c_j (e^a_j - e^b_j)) / sum p_j e^(c_j + b_j)
    B = (sum p_j (e^x_j - 1) |v_j - o| + |o| sum p_j e^x_j y_j) exp(sum p_j (|c_j| + |b_j|))                     (2)

for 1 / sum p_j e^-z_j <= exp(sum p_j z_j), since e^-z is convex (Jensen). So an error that keys share moves O only as
far as their values differ. P's rounding adds min(p_j, max(u_16 p_j, step)) e^x_j to either sum's weights. However
unsure the scores, weights that add up to 1 give a mean of values, so O is also no further off than the farthest value
is from o, and expm1(max y + u_16) max |v| besides, for what the two sums do not have in common. At last come underflow
(absolute) and the rounding of the output.

lse = m + log(sum): subtracting any number is exact, so log sum p_j e^(x_j) bounds it either way, and no more than
max x_j; the logarithm and its sum follow.

**Expected.** Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41,
A2815: take roundings for independent, of mean zero, at most u. Then, by Hoeffding's inequality,

    |sum_k w_k delta_k| <= lambda u sqrt(sum_k w_k^2)   with probability 1 - 2 exp(-lambda^2 / 2) at least,      (3)

which turns n u into lambda sqrt(n) u. Roundings do not sit at +-u: spread evenly they have a standard deviation of
u / sqrt(3), so that lambda = 4 is 6.9 standard deviations, one element in 10^11. (3) is used for:

    in a sum of x_k      weights are its partial sums. Met in random order their squares are on average at most
                         (sum x)^2 + sum x^2: this stands in place of (sum |x|)^2 (see also Higham and Mary 2020,
                         "Sharper probabilistic backward error analysis", SIAM J. Sci. Comput. 42, A3427)
    over keys            each key has errors of its own: sum p_j e_j |v_j - o| becomes sqrt(sum p_j^2 e_j^2 (v_j - o)^2)
    over P's roundings   the same; but equal weights are rounded alike, so what they do to |o| stays a plain sum
    over scaled Q        in a product, each element is rounded on its own; over keys, all meet the same roundings, so
                         what each key gets is added up plainly. So it is with caps and ALiBi: scores that are alike are
                        off by the same there

It does not hold for tensor cores, which cut off in one direction (n u then stays), nor where products of q.k are equal,
half of them or more: then each addition to the same binade repeats its rounding. lse has no differences that cancel,
and keys that are equal share their errors: there, what (3) gives for a key is added up plainly. A kernel that goes
beyond is suspicious and not proved wrong: inputs can conspire, in particular values that follow the scores.

Where factors are e4m3, all of this is about the answer from the rounded factors: see `e4m3_factors`.

**Exact**, where a kernel has no choice, and the rows of which nothing is promised: see `exact_answers`. Rows whose
answer is not finite have no budget but a contract: see `measure_accuracy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import LAMBDA, SMALLEST_STEP, U
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance
from harness.model.reference import Reference
from harness.operations.attention.budget.distances import Distances
from harness.operations.attention.budget.e4m3_factors import RoundedFactors, expected_cut, rounded_factors
from harness.operations.attention.budget.exact_answers import nothing_but_the_answer, nothing_promised
from harness.operations.attention.budget.product_errors import product_errors
from harness.operations.attention.budget.rounding_sizes import NORMAL_WEIGHT, Roundings
from harness.operations.attention.budget.score_errors import ScoreErrors, after_the_rule
from harness.operations.attention.oracle import Block, answer_of, over_blocks, shapes_of
from harness.operations.attention.problem import Problem

Float64Array = npt.NDArray[np.float64]
Array = npt.NDArray[np.float32]

ANY_KERNEL = Numerics()
"""Nothing is declared."""
SLACK = np.float32(1.01)
"""Covers (1 + u)^k <= exp(k u (1 + u)), gamma_k <= k u / (1 - k u) for k up to 10^5, and the rounding in here."""
SMALLEST = SMALLEST_STEP["float32"]
LARGEST_ARGUMENT = np.float32(104)
"""exp(-104) is below the smallest float32: a weight that is further down is 0 in either sum."""


def error_budget(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    answer: Mapping[str, Float64Array],
    numerics: Numerics = ANY_KERNEL,
    part: Part = WHOLE,
) -> dict[str, Tolerance]:
    """The budgets of O and lse for these very inputs; `answer` is the oracle's, `numerics` what is declared.

    For a part of the problem, `answer` is that of the part, and so are the budgets.
    """
    shape_of_O, shape_of_lse = shapes_of(problem, part)
    O, expected_O = np.empty(shape_of_O), np.empty(shape_of_O)
    lse, expected_lse = np.empty(shape_of_lse), np.empty(shape_of_lse)

    @np.errstate(all="ignore")
    def allow(block: Block) -> None:
        at = block.where
        exactly = {name: array[at] for name, array in answer.items()}
        factors, near = None, exactly
        if numerics.factors == "e4m3":
            factors = rounded_factors(problem, block, inputs)
            block = factors.block
            near = answer_of(block)
        rows = _Rows.of(problem, block, near, numerics, factors)
        stored = _Stored.of(near, rows, block)
        O_error, log_error = _proved(rows)
        O[at], lse[at] = stored.of_O(O_error), stored.of_lse(log_error)
        O_error, log_error = _expected(rows)
        expected_O[at], expected_lse[at] = stored.of_O(O_error), stored.of_lse(log_error)

        if factors is None:
            exact = nothing_but_the_answer(problem, block, rows.p, rows.score_error, numerics)
            # A NaN under a weight that float32 does not see is the answer all the same.
            O[at][exact & np.isfinite(exactly["O"])] = 0.0
        open_O, open_lse = nothing_promised(problem, block, np.abs(near["O"]) + O[at], numerics)
        if factors is not None:
            for budget, moved in (
                ((O, expected_O), _apart(near["O"], exactly["O"])),
                ((lse, expected_lse), _apart(near["lse"], exactly["lse"])),
            ):
                for tier in budget:
                    tier[at] += moved
        O[at][open_O] = np.inf
        lse[at][open_lse] = np.inf

    over_blocks(problem, inputs, allow, part, answer.blocks if isinstance(answer, Reference) else None)
    return {"O": Tolerance(O, np.fmin(expected_O, O)), "lse": Tolerance(lse, np.fmin(expected_lse, lse))}


@dataclass(frozen=True)
class _Rows:
    """Rows of a problem in the letters of the derivation, in float32: a budget needs three digits, and speed.

    Axes: (b, h, rows, keys), or (b, h, rows, 1) for what a row has once. Values and answers are divided by `unit`.
    """

    rounding: Roundings
    one_score: bool
    n: Array
    """Keys that the row sees, (b or 1, h or 1, rows, 1)."""
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
    largest_stored: Array
    """The larger of |s_j| and what it was before ALiBi: either may be what is stored."""
    query: Array | float
    """The part of `dot` that is due to Q's scaling."""
    expected_query: Array | float
    """The part of `expected_common` that is due to Q's scaling."""
    expected_dot: Array
    """sigma_j in the expected tier, but for what follows."""
    expected_common: Array | float
    """What is no error of the key's own: of Q's scaling, and of what scores become besides."""
    unit: Float64Array
    """(b, h, 1, d): the largest |v_j|."""
    o: Array
    """|o|, (b, h, rows, d)."""
    distances: Distances
    kept: Array | None
    """(b, h, rows, keys): 0 where a weight drops out, else 1; None: none does."""
    values: Array | None
    """v, (b, h, keys, d), where factors are e4m3; else None."""
    products: Array
    """Error of O's sum where products are e4m3, relative to the sum of magnitudes, (b or 1, h or 1, rows, 1)."""
    products_step: Float64Array | float
    """Absolute error of O's sum from the smallest products of e4m3."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        block: Block,
        answer: Mapping[str, Float64Array],
        numerics: Numerics,
        factors: RoundedFactors | None,
    ) -> _Rows:
        rounding = Roundings.of(problem, numerics)
        n = block.keys_seen[..., None]
        m, scores = block.largest_scores()[..., None], block.scores
        log_p = (scores - np.where(block.blind, 0.0, answer["lse"])[..., None]).astype(np.float32)
        finite = np.isfinite(scores)
        if not finite.all():
            scores = np.where(finite, scores, m)
        score: Array = scores.astype(np.float32)
        largest: Array = m.astype(np.float32)
        s = np.abs(score)
        errors = _score_errors(problem, block, scores, rounding, factors)
        v = (factor := block.kept_factor) * _finite(block.v)
        unit = np.abs(v).max(axis=-2, keepdims=True)
        unit[unit == 0] = 1.0
        o = answer["O"] / unit
        distances = Distances.of(v / unit, o, block.kept)
        products = rounding.value_products(n.astype(np.float32))
        return cls(
            rounding=rounding,
            one_score=numerics.one_score,
            n=n.astype(np.float32),
            m=np.abs(largest),
            log_p=log_p,
            p=np.exp(log_p),
            s=s,
            below=largest - score,
            dot=errors.proved,
            stored=errors.stored(rounding),
            largest_stored=errors.largest,
            query=errors.query,
            expected_query=errors.expected_query,
            expected_dot=errors.expected,
            expected_common=errors.common,
            unit=unit,
            o=np.abs(o, dtype=np.float32, casting="same_kind"),
            distances=distances,
            kept=distances.kept,
            values=None if factors is None else (v / unit).astype(np.float32),
            products=products,
            # max(w, f) max(v, g) <= w v + f v + w g + f g, for weights and values below their smallest normal numbers.
            products_step=products * (NORMAL_WEIGHT * unit + 2 * factor * factors.normal_v) if factors else 0.0,
        )

    @property
    def score_error(self) -> Array:
        return self.dot + self.stored


def _score_errors(
    problem: Problem, block: Block, scores: Float64Array, rounding: Roundings, factors: RoundedFactors | None
) -> ScoreErrors:
    """The errors of scores in the two tiers, their storage aside; `scores` are the block's, all of them finite."""
    q, k = _finite(block.q), _finite(block.k)
    products = scores if block.rule.keeps_products else problem.tau * (q @ k.mT)
    single_q, single_k, magnitudes = (x.astype(np.float32) for x in (q, k, np.abs(products)))
    of_products = product_errors(problem, single_q, single_k, magnitudes, rounding, factors)
    errors = after_the_rule(block.rule, scores, products, of_products, rounding)
    # A key that a row does not see, however large, is no concern of that row's.
    return errors if block.visible.all() else errors.where(block.visible)


def _apart(one: Float64Array, other: Float64Array) -> Float64Array:
    return np.where(one == other, 0.0, np.abs(one - other))


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
        apart += rows.dot - rows.query
    shared = score_error if rows.one_score else rows.stored + rows.query
    total = shared + apart
    weight_error, factor = _perturbed(rows, SLACK * (total + r.division))
    most_apart = _max(apart)
    log_error = np.fmin(np.log1p(_sum(weight_error)), SLACK * (largest_score_error + most_apart))

    hull = np.expm1(SLACK * (2 * most_apart + r.division + r.weights + rows.products)) + 2 * n * r.weights_step
    separate = 2 * apart + r.division
    separate *= p
    if r.weights:
        rounded = np.minimum(p, np.maximum(r.weights * p, r.weights_step))
        weight_error += rounded * factor
        separate += rounded
    if r.e4m3:
        weight_error += rows.products * p * factor
        separate += rows.products * p
    O_error = rows.distances.absolute(weight_error) + rows.o * _sum(separate * factor)
    return np.fmin(O_error * np.exp(SLACK * _sum(p * total)), rows.distances.farthest() + hull), log_error


def _expected(rows: _Rows) -> tuple[Array, Array]:
    """Expected errors of O and of log(sum exp), as `_proved` returns them, as if roundings were random."""
    r, p, n = rows.rounding, rows.p, rows.n
    sums = r.expected_sum(n)
    exp_error: Array = (r.argument + U) * np.minimum(rows.below, LARGEST_ARGUMENT) + r.exp
    if r.frame:
        exp_error += r.frame * (rows.s + rows.m)
    variance = np.square(rows.expected_dot) + np.square(LAMBDA * exp_error)
    variance += 2 * sums * sums + LAMBDA**2 * r.rescale**2 * n
    if r.scores:
        variance += (LAMBDA * r.scores) ** 2 * np.square(rows.largest_stored)
    weight_error, factor = _perturbed(rows, np.sqrt(variance))
    total = _sum(weight_error)
    common: Array | float = 0.0
    if isinstance(rows.expected_common, np.ndarray):
        common_error, common_factor = _perturbed(rows, rows.expected_common)
        weight_error, factor = weight_error * common_factor, factor * common_factor
        total = _sum(weight_error) + _sum(common_error)
        common = rows.distances.absolute(common_error)

    errors = [weight_error]
    each = exp_error
    if not rows.one_score:
        each = each + rows.expected_dot + (rows.expected_common - rows.expected_query)
    rescaled: Array = np.multiply(LAMBDA * U, np.sqrt(n))  # products, in either sum
    separate: Array = 2 * (_sum(p * each) + sums + rescaled) + r.division
    if r.weights:
        rounded = np.minimum(p, np.maximum(r.weights * p, r.weights_step))
        errors.append(LAMBDA * rounded * factor)
        separate += _sum(rounded)
    O_error = rows.distances.root_of_squares(*errors) + common + rows.o * separate
    if rows.values is not None:
        O_error += expected_cut(p if rows.kept is None else p * rows.kept, rows.values, rows.o, n)
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
    o: Float64Array
    """|o|, as it is stored."""
    lost: Float64Array
    """What underflow costs O."""
    not_finite: npt.NDArray[np.bool_] | None
    """Where O is not finite; None where it is everywhere."""
    without_keys: npt.NDArray[np.bool_]
    """(b, h, rows): those that see no key."""
    blind: npt.NDArray[np.bool_]
    """(b, h, rows): those that see nothing, not even a sink."""
    lse_answer: Float64Array

    @classmethod
    def of(cls, answer: Mapping[str, Float64Array], rows: _Rows, block: Block) -> _Stored:
        o = np.abs(answer["O"])
        not_finite = ~np.isfinite(o)
        # Weights are at most 1 and one of them is 1, so the denominator is at least 1 and what is too small costs this.
        lost = SMALLEST * rows.n * (4 + rows.unit + o) + rows.products_step
        without_keys, blind = (np.broadcast_to(x, answer["lse"].shape) for x in (block.without_keys, block.blind))
        return cls(rows, o, lost, not_finite if not_finite.any() else None, without_keys, blind, answer["lse"])

    def of_O(self, error: Array) -> Float64Array:
        """The budget of O, from its error in units of V."""
        r = self.rows.rounding
        total: Float64Array = error * self.rows.unit + self.lost
        stored = (self.o + total) * (SLACK * r.output)
        total += np.maximum(stored, r.output_step, out=stored)
        if self.not_finite is not None:
            total[self.not_finite] = np.nan
        total[self.without_keys] = 0.0
        # A row without keys whose sink is NaN or infinite: any output is accepted.
        total[self.without_keys & ~self.blind & ~np.isfinite(self.lse_answer)] = np.inf
        return total

    def of_lse(self, error: Array) -> Float64Array:
        """The budget of lse, from the error of log(sum exp)."""
        r, n, m = self.rows.rounding, self.rows.n[..., 0], self.rows.m[..., 0]
        total: Float64Array = error[..., 0] + r.log * np.abs(self.lse_answer) + r.log_absolute
        total += r.log_of_sum * np.log(np.maximum(n, 1)) + 2 * r.frame * m
        total[~np.isfinite(self.lse_answer)] = np.nan
        total[self.blind] = 0.0
        return total
