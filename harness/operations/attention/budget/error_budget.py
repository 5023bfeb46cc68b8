"""Derives the error budget of attention: the largest errors that a correct kernel can have on the given inputs.

Each output element has two limits, a proved and an expected one. Notation: s_j = tau q.k_j, m = max s, p = softmax(s),
o = sum p_j v_j, in exact arithmetic from the stored inputs; n keys are seen; u = 2^-24. `rounding_sizes` has the sizes
of single roundings, and which of them a variant can declare.

**What a kernel computes.** With any loops, its result is

    o^ = sum p_j exp(c_j + a_j) v_j / sum p_j exp(c_j + b_j)                                                     (1)

c_j is the error of the score, which both sums share; a_j and b_j are the errors of each sum:

    |c_j| <= sigma_j + stored_j
        sigma_j = (d + 2) u |tau| sum_i |q_i k_ji|      d products and sums in any order, with or without fused
                                                        multiply-add; the scale's own rounding, and its product
                + ((1 + u_16)^r - 1) |tau| sum_i |q_i k_ji|     if Q is scaled before the product, each element
                                                        rounded to 16 bits r times (`scaled_q`); for subnormal
                                                        elements, an absolute step times sum_i |k_ji| in addition
        stored_j = u_16 (|s_j| + sigma_j)               if S is stored in 16 bits
    |a_j|, |b_j| <= u (m - s_j + |c_j| + max |c|)       the arguments of exponentials, rounded
        + 4u + n 5u                                     the exponential; rescaling at every key: exponential, product
        + n u                                           a sum over n keys in any order
    |a_j| also <= ... + 2u                              1 / l, and its product

    |c_j| also <= ... + 9e-5                            if powers of two may be a cubic's (`cubic_exp`): both sums use
                                                        the same one. It is no random error, but a function of s_j - m
    m - s_j + 2 h ln 2 in place of m - s_j              if the subtracted maximum may be up to h ln 2 below that of the
                                                        keys so far (`headroom`): up to h ln 2 is added to a key's own
                                                        argument, in magnitude, and up to h ln 2 to those of its rises

and the rounding of P if it is stored. Score terms and sinks change c_j (`score_errors`). With dropout, each
row has its own values (`distances`). Common factors of all weights cancel in (1): any number may be subtracted from the
scores, so an error of the computed maximum has no effect. A key's weight is multiplied by several exponentials (its
own, then one per rise of the running maximum, or when parts with separate maxima are combined). Their arguments add up
to its computed distance from the maximum for any tiles, so one term in m - s_j is enough for any loop order. Each of
them but the first leads to another key with a larger score, so there are at most n. Factors (1 + delta)^k are written
as exp(k u) (Higham 2002, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1 and section 3.1 on inner
products in any order); `SLACK` covers the difference. If a variant does not declare `one_score`, sigma_j is part of a_j
and b_j, except for Q's scaling, because a rounded Q is the same in every product.

**Proved.** sum p_j (v_j - o) = 0, hence, with x_j = |c_j| + |a_j| and y_j = |a_j| + |b_j|,

    o^ - o = (sum p_j (e^(c_j + a_j) - 1) (v_j - o) + o sum p_j e^c_j (e^a_j - e^b_j)) / sum p_j e^(c_j + b_j)
    B = (sum p_j (e^x_j - 1) |v_j - o| + |o| sum p_j e^x_j y_j) exp(sum p_j (|c_j| + |b_j|))                     (2)

because 1 / sum p_j e^-z_j <= exp(sum p_j z_j), since e^-z is convex (Jensen). So an error that keys share moves O only
as far as their values differ. Rounding P adds min(p_j, max(u_16 p_j, step)) e^x_j to the weights of both sums. For any
errors of scores, weights that add up to 1 give a mean of values. So the error of O is also at most the distance of the
farthest value from o, plus expm1(max y + u_16) max |v| for the difference between the two sums. Underflow (absolute)
and the rounding of the output are added last.

lse = m + log(sum): subtracting any number is exact, so its error is at most log sum p_j e^(x_j), which is at most
max x_j, plus the errors of the logarithm and of the final sum.

**Expected.** Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41,
'A2815: assume that roundings are independent, of mean zero, at most u. Then, by Hoeffding's inequality,

    |sum_k w_k delta_k| <= lambda u sqrt(sum_k w_k^2)   with probability 1 - 2 exp(-lambda^2 / 2) at least,      (3)

which turns n u into lambda sqrt(n) u. Uniformly distributed roundings have a standard deviation of u / sqrt(3), so
lambda = 4 is 6.9 standard deviations, one element in 10^11. (3) is used for:

    a sum of x_k         weights are its partial sums. In random order their squares are on average at most
                         (sum x)^2 + sum x^2, which replaces (sum |x|)^2 (see also Higham and Mary 2020,
                         "Sharper probabilistic backward error analysis", SIAM J. Sci. Comput. 42, A3427)
    errors of keys       are independent: sum p_j e_j |v_j - o| becomes sqrt(sum p_j^2 e_j^2 (v_j - o)^2). If keys are
                         equal, so are their errors. These cancel, except against a sink: with z the sink's weight,
                         sum p_j (v_j - o) = z o over the keys, so z / (1 - z) |o| sum p_j e_j is added
    roundings of P       the same; but equal weights are rounded alike, so their effect on |o| remains a plain sum
    scaled Q             in a product, each element is rounded independently; all keys share these roundings, so their
                         effects on keys are added. This also applies to caps, ALiBi and biases, where equal scores have
                         equal errors

It does not hold for tensor cores, which truncate (n u remains), nor if half of the products of q.k or more are equal,
since each addition to the same binade then repeats its rounding. lse has no differences that cancel, and equal keys
share their errors, so the values of (3) for keys are added. A kernel with larger errors is suspicious but not proved
wrong, because inputs can be adversarial, e.g. values that correlate with the scores.

If factors are e4m3, all of this is relative to the answer from the rounded factors (`e4m3_factors`).

**Exact** elements, and rows in which any result is accepted, are determined in `exact_answers`. Rows whose answer is
not finite have no budget; `measure_accuracy` checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import LAMBDA, SMALLEST_STEP, U
from harness.model.array_types import Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance
from harness.model.reference import Reference
from harness.operations.attention.budget.constant_maximum import Shift, shift_of
from harness.operations.attention.budget.distances import Distances
from harness.operations.attention.budget.e4m3_factors import RoundedFactors, expected_cut, rounded_factors
from harness.operations.attention.budget.exact_answers import exact_elements, unconstrained_elements
from harness.operations.attention.budget.product_errors import product_errors
from harness.operations.attention.budget.rounding_sizes import NORMAL_WEIGHT, Roundings
from harness.operations.attention.budget.score_errors import errors_after_rule, seen
from harness.operations.attention.oracle import Block, answer_of, over_blocks, shapes_of
from harness.operations.attention.problem import Problem
from harness.operations.attention.products import finite
from harness.operations.attention.score_term import ScoreErrors

Array = npt.NDArray[np.float32]

ANY_KERNEL = Numerics()
"""Numerics without declarations."""
SLACK = np.float32(1.01)
"""Covers (1 + u)^k <= exp(k u (1 + u)), gamma_k <= k u / (1 - k u) for k up to 10^5, and roundings of this module."""
SMALLEST = SMALLEST_STEP["float32"]
LARGEST_ARGUMENT = np.float32(104)
"""exp(-104) is below the smallest float32, so smaller weights are 0 in both sums."""


def error_budget(
    problem: Problem,
    inputs: Mapping[str, np.ndarray],
    answer: Mapping[str, Float64Array],
    numerics: Numerics = ANY_KERNEL,
    part: Part = WHOLE,
) -> dict[str, Tolerance]:
    """Return the budgets of O and lse for the given inputs.

    `answer` is the oracle's, and `numerics` are the variant's declarations. `answer` and the budgets cover only `part`
    of the problem.
    """
    shape_of_O, shape_of_lse = shapes_of(problem, part)
    O, expected_O = np.empty(shape_of_O), np.empty(shape_of_O)
    lse, expected_lse = np.empty(shape_of_lse), np.empty(shape_of_lse)

    @np.errstate(all="ignore")
    def set_budget(block: Block) -> None:
        where = block.where
        exact_answer = {name: array[where] for name, array in answer.items()}
        factors, rounded_answer = None, exact_answer
        if numerics.factors == "e4m3":
            factors = rounded_factors(problem, block, inputs)
            block = factors.block
            rounded_answer = answer_of(block)
        rows = _Rows.of(problem, block, rounded_answer, numerics, factors)
        stored = _Stored.of(rounded_answer, rows, block)
        O_error, log_error = _proved(rows)
        O[where], lse[where] = stored.of_O(O_error), stored.of_lse(log_error)
        O_error, log_error = _expected(rows)
        expected_O[where], expected_lse[where] = stored.of_O(O_error), stored.of_lse(log_error)

        if factors is None:
            exact = exact_elements(problem, block, rows.p, rows.score_error, numerics)
            # A NaN is the answer even if its weight underflows in float32.
            O[where][exact & np.isfinite(exact_answer["O"])] = 0.0
        largest_O = np.abs(rounded_answer["O"]) + O[where]
        unconstrained_O, unconstrained_lse = unconstrained_elements(problem, block, largest_O, numerics)
        if factors is not None:
            for budget, moved in (
                ((O, expected_O), _distance(rounded_answer["O"], exact_answer["O"])),
                ((lse, expected_lse), _distance(rounded_answer["lse"], exact_answer["lse"])),
            ):
                for tier in budget:
                    tier[where] += moved
        O[where][unconstrained_O] = np.inf
        lse[where][unconstrained_lse] = np.inf

    over_blocks(problem, inputs, set_budget, part, answer.blocks if isinstance(answer, Reference) else None)
    return {"O": Tolerance(O, np.fmin(expected_O, O)), "lse": Tolerance(lse, np.fmin(expected_lse, lse))}


@dataclass(frozen=True)
class _Rows:
    """Quantities of the derivation for some rows of a problem, in float32, which is fast and accurate enough.

    Shapes are (b, h, rows, keys), or (b, h, rows, 1) for quantities of a row. Values and answers are divided by `unit`.
    """

    rounding: Roundings
    one_score: bool
    keys_seen: Array
    """n: number of keys that the row sees, (b or 1, h or 1, rows, 1)."""
    abs_max: Array
    """|m|."""
    log_p: Array
    p: Array
    """softmax(s), 0 for keys that the row does not see. Other quantities are finite for these."""
    abs_scores: Array
    """|s_j|."""
    max_minus_score: Array
    """m - s_j."""
    errors: ScoreErrors
    """sigma_j and its parts: errors of the score before it is stored."""
    stored: Array | float
    """Error of storing the score."""
    unit: Float64Array
    """(b, h, 1, d): the largest |v_j|."""
    abs_o: Array
    """|o|, (b, h, rows, d)."""
    distances: Distances
    kept: Array | None
    """(b, h, rows, keys): 0 for dropped weights, else 1. None without dropout."""
    values: Array | None
    """v, (b, h, keys, d), if factors are e4m3; else None."""
    products: Array
    """Error of O's sum if products are e4m3, relative to the sum of magnitudes, (b or 1, h or 1, rows, 1)."""
    sink_odds: Array | float
    """Weight of the sink relative to that of all keys, (b, h, rows, 1). 0 without sinks."""
    products_step: Float64Array | float
    """Absolute error of O's sum from the smallest products of e4m3."""
    shift: Shift
    """How far what is subtracted from scores is from their maximum."""

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
        keys_seen = block.keys_seen[..., None]
        log_p = (block.scores - np.where(block.blind, 0.0, answer["lse"])[..., None]).astype(np.float32)
        score: Array = block.finite_scores.astype(np.float32)
        largest: Array = block.largest_scores()[..., None].astype(np.float32)
        errors = _score_errors(block, rounding, factors)
        v = (factor := block.kept_factor) * finite(block.v)
        unit = np.abs(v).max(axis=-2, keepdims=True)
        unit[unit == 0] = 1.0
        o = answer["O"] / unit
        distances = Distances.of(v / unit, o, block.kept)
        products = rounding.value_products(keys_seen.astype(np.float32))
        p = np.exp(log_p)
        return cls(
            rounding=rounding,
            one_score=numerics.one_score,
            keys_seen=keys_seen.astype(np.float32),
            abs_max=np.abs(largest),
            log_p=log_p,
            p=p,
            abs_scores=np.abs(score),
            max_minus_score=largest - score,
            errors=errors,
            stored=errors.stored(rounding),
            unit=unit,
            abs_o=np.abs(o, dtype=np.float32, casting="same_kind"),
            distances=distances,
            kept=distances.kept,
            values=None if factors is None else (v / unit).astype(np.float32),
            products=products,
            sink_odds=0.0 if block.rule.sinks is None else _odds_of_last(p),
            # max(w, f) max(v, g) <= w v + f v + w g + f g, for weights and values below their smallest normal numbers.
            products_step=products * (NORMAL_WEIGHT * unit + 2 * factor * factors.normal_v) if factors else 0.0,
            shift=shift_of(numerics.constant_maximum, largest, answer["lse"][..., None]),
        )

    @property
    def score_error(self) -> Array:
        return self.errors.proved + self.stored


def _score_errors(block: Block, rounding: Roundings, factors: RoundedFactors | None) -> ScoreErrors:
    """Return the errors of scores before they are stored."""
    products = block.products
    of_products = product_errors(products, np.float32(abs(block.tau)), rounding, factors)
    errors = errors_after_rule(block.rule, block.finite_scores, products.values, of_products, rounding)
    if rounding.cubic:
        errors = errors.plus(np.full_like(errors.proved, rounding.cubic), errors.largest)
    # Keys that a row does not see may be arbitrarily large.
    return errors if block.visible.all() else seen(errors, block.visible)


def _odds_of_last(p: Array) -> Array:
    """Return the last weight of each row relative to the sum of the others; 0 if that underflows."""
    others = _sum(p[..., :-1])
    return np.divide(p[..., -1:], others, out=np.zeros_like(others), where=others > 0)


def _distance(one: Float64Array, other: Float64Array) -> Float64Array:
    return np.where(one == other, 0.0, np.abs(one - other))


def _proved(rows: _Rows) -> tuple[Array, Array]:
    """Return bounds on the errors of O, in units of V, and of log(sum exp), before they are stored."""
    rounding, errors, p, n = rows.rounding, rows.errors, rows.p, rows.keys_seen
    score_error = rows.score_error
    largest_score_error = _max(score_error)
    argument = np.minimum(rows.max_minus_score + score_error + largest_score_error, LARGEST_ARGUMENT)
    argument = argument + rows.shift.distance
    own_error = rounding.argument * (argument + 2 * rounding.headroom) + (
        rounding.exp + n * (rounding.rescale + rounding.addition)
    )
    if rounding.frame:
        own_error += rounding.frame * (rows.abs_scores + rows.abs_max + rounding.headroom)
    if not rows.one_score:
        own_error += errors.proved - errors.query
    shared = score_error if rows.one_score else rows.stored + errors.query
    total = shared + own_error
    weight_error, factor = _perturbed(rows, SLACK * (total + rounding.division))
    largest_own_error = _max(own_error)
    log_error = np.fmin(np.log1p(_sum(weight_error)), SLACK * (largest_score_error + largest_own_error))

    weights_step = rounding.weights_step * rows.shift.growth
    sum_difference = 2 * largest_own_error + rounding.division + rounding.weights + rows.products
    sum_difference = np.expm1(SLACK * sum_difference) + 2 * n * weights_step
    separate = 2 * own_error + rounding.division
    separate *= p
    if rounding.weights:
        rounded = np.minimum(p, np.maximum(rounding.weights * p, rounding.weights_step * rows.shift.growth))
        weight_error += rounded * factor
        separate += rounded
    if rounding.e4m3:
        weight_error += rows.products * p * factor
        separate += rows.products * p
    O_error = rows.distances.absolute(weight_error) + rows.abs_o * _sum(separate * factor)
    return np.fmin(O_error * np.exp(SLACK * _sum(p * total)), rows.distances.farthest() + sum_difference), log_error


def _expected(rows: _Rows) -> tuple[Array, Array]:
    """Return expected errors of O, in units of V, and of log(sum exp), assuming random roundings."""
    rounding, errors, p, n = rows.rounding, rows.errors, rows.p, rows.keys_seen
    sums = rounding.expected_sum(n)
    argument = np.minimum(rows.max_minus_score, LARGEST_ARGUMENT) + rows.shift.distance + 2 * rounding.headroom
    exp_error: Array = (rounding.argument + U) * argument + rounding.exp
    if rounding.frame:
        exp_error += rounding.frame * (rows.abs_scores + rows.abs_max + rounding.headroom)
    variance = np.square(errors.expected) + np.square(LAMBDA * exp_error)
    variance += 2 * sums * sums + LAMBDA**2 * rounding.rescale**2 * n
    if rounding.scores:
        variance += (LAMBDA * rounding.scores) ** 2 * np.square(errors.largest)
    weight_error, factor = _perturbed(rows, np.sqrt(variance))
    total = _sum(weight_error)
    common: Array | float = 0.0
    if isinstance(errors.common, np.ndarray):
        common_error, common_factor = _perturbed(rows, errors.common)
        weight_error, factor = weight_error * common_factor, factor * common_factor
        total = _sum(weight_error) + _sum(common_error)
        common = rows.distances.absolute(common_error)

    weight_errors, error_of_equal_keys = [weight_error], weight_error
    own_error = exp_error
    if not rows.one_score:
        own_error = own_error + errors.expected + (errors.common - errors.expected_query)
    rescaled: Array = np.multiply(LAMBDA * U, np.sqrt(n))  # products, in either sum
    separate: Array = 2 * (_sum(p * own_error) + sums + rescaled) + rounding.division
    if rounding.weights:
        rounded = np.minimum(p, np.maximum(rounding.weights * p, rounding.weights_step * rows.shift.growth))
        weight_errors.append(LAMBDA * rounded * factor)
        error_of_equal_keys = error_of_equal_keys + rounded * factor
        separate += _sum(rounded)
    if isinstance(rows.sink_odds, np.ndarray):
        separate += rows.sink_odds * _sum(error_of_equal_keys[..., :-1])
    O_error = rows.distances.root_of_squares(*weight_errors) + common + rows.abs_o * separate
    if rows.values is not None:
        O_error += expected_cut(p if rows.kept is None else p * rows.kept, rows.values, rows.abs_o, n)
    return O_error * np.exp(total), np.log1p(total)


def _perturbed(rows: _Rows, x: Array) -> tuple[Array, Array]:
    """Return upper bounds on p (e^x - 1) and e^x, for x >= 0."""
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
    return x @ np.ones((x.shape[-1], 1), np.float32)


@dataclass(frozen=True)
class _Stored:
    """Adds the errors of underflow, of the logarithm and of rounding the output."""

    rows: _Rows
    o: Float64Array
    """|o|, not divided by `unit`."""
    underflow: Float64Array
    """Absolute error of O due to underflow."""
    not_finite: npt.NDArray[np.bool_] | None
    """Where O is not finite; None if it is finite everywhere."""
    without_keys: npt.NDArray[np.bool_]
    """(b, h, rows): whether the row sees no key."""
    blind: npt.NDArray[np.bool_]
    """(b, h, rows): whether the row sees neither a key nor a sink."""
    lse_answer: Float64Array

    @classmethod
    def of(cls, answer: Mapping[str, Float64Array], rows: _Rows, block: Block) -> _Stored:
        o = np.abs(answer["O"])
        not_finite = ~np.isfinite(o)
        # Weights are at most 1 and one of them is 1, so the denominator is at least 1, or 1 / growth with a constant.
        underflow = SMALLEST * rows.shift.growth * rows.keys_seen * (4 + rows.unit + o) + rows.products_step
        without_keys, blind = (np.broadcast_to(x, answer["lse"].shape) for x in (block.without_keys, block.blind))
        return cls(rows, o, underflow, not_finite if not_finite.any() else None, without_keys, blind, answer["lse"])

    def of_O(self, error: Array) -> Float64Array:
        """Return the budget of O, given its error in units of V."""
        rounding = self.rows.rounding
        total: Float64Array = error * self.rows.unit + self.underflow
        stored = (self.o + total) * (SLACK * rounding.output)
        total += np.maximum(stored, rounding.output_step, out=stored)
        if self.not_finite is not None:
            total[self.not_finite] = np.nan
        total[self.without_keys] = 0.0
        # A row without keys whose sink is NaN or infinite: any output is accepted.
        total[self.without_keys & ~self.blind & ~np.isfinite(self.lse_answer)] = np.inf
        return total

    def of_lse(self, error: Array) -> Float64Array:
        """Return the budget of lse, given the error of log(sum exp)."""
        rounding, n, m = self.rows.rounding, self.rows.keys_seen[..., 0], self.rows.abs_max[..., 0]
        total: Float64Array = error[..., 0] + rounding.log * np.abs(self.lse_answer) + rounding.log_absolute
        total += rounding.log_of_sum * (np.log(np.maximum(n, 1)) + self.rows.shift.distance[..., 0] + rounding.headroom)
        total += 2 * rounding.frame * (m + rounding.headroom)
        total[~np.isfinite(self.lse_answer)] = np.nan
        total[self.blind] = 0.0
        return total
