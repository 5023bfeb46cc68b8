"""Derives the error budget of gradients: the largest errors that a correct kernel can have on the given inputs.

Each element has two limits, a proved and an expected one. Notation as in `oracle`; u = 2^-24; g_n = n a, where a is
the error of an addition: u if it rounds to nearest, and 2u on tensor cores, which truncate. |.| of a matrix is
elementwise. Constants and their sources are in `harness.model.arithmetic.rounding`.

**What a kernel computes.** With any loops, it recomputes weights from lse and multiplies:

    P^_ij = P_ij exp(e_ij)
        |e_ij| <= sigma_ij + stored_ij      sigma = g_(d + 3) |tau| |q_i|.|k_j|, products and sums in any order, the
                                            scale's rounding and product; stored = u_16 (|s| + sigma) if S is
                                            stored in 16 bits
               + argument |s_ij - lse_i| + frame (|s_ij| + |lse_i|) + 4u    subtraction, log2 e, the exponential
    dP^_ij = dP_ij + f_ij,  delta^_i = delta_i + h_i
        |f_ij| <= g_(d + 1) |dO_i|.|v_j| + t(dO_i, v_j)  (+ u_16 |dP^| if dP is stored in 16 bits)
        |h_i| <= g_(d + 1) |dO_i|.|O_i| + t(dO_i, O_i)
        t(x, y) = (d + sum |x| + sum |y|) 2^-126    subnormal products and factors, flushed to zero
    dS^_ij = P^ (dP^ - delta^), two roundings; subnormal dS^ or tau dS^ are flushed to zero

so, to first order but including products of errors,

    |dS^ - dS| <= P (e^|e| - 1) |dP - delta| + P e^|e| (|f| + |h| + 3u (|dP| + |delta| + |f| + |h|))             (1)

With dropout, D multiplies P (as a factor of dV) and dP, and their errors; rounding D and its product adds 2u. delta and
dS are as above.

If P and dS are 16-bit factors, their roundings are added: u_16 of each, or a step if they are subnormal. Sums over n
keys or rows, in any order, by atomics or over the heads of a group, add g_(n + 2) of the sum of magnitudes.

**Proved.** (1) through the products:

    dQ_i: tau sum_j |dS^ - dS| |k_j| + g tau sum_j |dS^| |k_j|        and so dK, dV

**Expected.** Higham and Mary 2019 (SIAM J. Sci. Comput. 41, A2815), as in the forward pass: independent roundings of n
terms sum to lambda sqrt(n) u, not n u, and independent errors of pairs add up in squares. There are five exceptions. A
row shares the errors of lse and delta, so they are added linearly over keys, and in squares over rows. Scores with
mostly equal products have equal errors, so their proved errors are added linearly. Equal weights are rounded alike to
16 bits, which adds u_16 of the answer, and so are equal dP. Additions on tensor cores err in one direction.

The rounding of the output is added last. The budget is infinite for rows and keys affected by nonfinite numbers, and
for those whose dS or dP may overflow in float16 or whose weights overflow because lse is far too small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.equal_products import mostly_equal_products
from harness.model.arithmetic.rounding import (
    ARGUMENT,
    EXP,
    LAMBDA,
    LARGEST,
    SMALLEST_STEP,
    UNIT_ROUNDOFF,
    U,
    addition,
    frame,
)
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance
from harness.model.reference import Reference
from harness.operations.attention_backward.oracle import Arrays, Block, Sums, blocks_of, products_of
from harness.operations.attention_backward.problem import BackwardProblem

Float64Array = npt.NDArray[np.float64]

NUMERICS_USED = ("scores", "weights", "functions", "sums")
"""The fields of `Numerics` that errors of gradients depend on."""
SLACK = 1.01
"""Covers (1 + u)^k <= exp(k u (1 + u)) for k up to 10^5, and products of errors of sums."""
TINY = SMALLEST_STEP["float32"]
LARGEST_ARGUMENT = 104.0
"""exp(-104) is below the smallest float32."""
ABOUT_EQUAL = 0.5
"""Share of Cauchy's bound from which terms count as about equal: their mean is at least 0.7 of their RMS."""
DROPOUT_ERROR = 2 * U
"""Error of the rounded 1 / (1 - P) and of a product with it."""
SCORE_ROUNDINGS, SUM_ROUNDINGS = 3, 2
"""Roundings of a score in addition to one per term (scale, its product, log2 e), and of a gradient (tau, last sum)."""


@dataclass(frozen=True)
class Roundings:
    """Errors of single roundings, relative unless stated otherwise."""

    addition: float
    nearest: bool
    argument: float
    frame: float
    stored: float
    """Error of storing S and dP."""
    stored_step: float
    """Error of storing the smallest elements of S and dP; absolute."""
    factor: float
    """Error of P and dS as factors of a product."""
    factor_step: float
    """Error of the smallest elements of P and dS as factors; absolute."""
    output: float
    output_step: float

    @classmethod
    def of(cls, problem: BackwardProblem, numerics: Numerics) -> Roundings:
        """Return the sizes of roundings of a variant with these `numerics` on this problem."""
        u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
        has_16_bits = problem.dtype != "float32"
        stores, rounds = (has_16_bits and x == "problem" for x in (numerics.scores, numerics.weights))
        return cls(
            addition=addition(numerics),
            nearest=numerics.sums == "nearest",
            argument=ARGUMENT[numerics.functions],
            frame=frame(numerics),
            stored=u if stores else 0.0,
            stored_step=step if stores else 0.0,
            factor=u if rounds else 0.0,
            factor_step=step if rounds else 0.0,
            output=u,
            output_step=step,
        )

    def proved_sum(self, terms: Float64Array | int) -> Float64Array | float:
        """Return the error of `terms` roundings in a sum, relative to the sum of magnitudes."""
        return SLACK * self.addition * terms

    def expected_sum(self, terms: Float64Array | int) -> Float64Array | float:
        """Return the expected error of `terms` roundings, relative to partial sums; at most `proved_sum`."""
        steps = np.minimum(LAMBDA * np.sqrt(terms), terms) if self.nearest else terms
        return SLACK * self.addition * steps


@dataclass(frozen=True)
class _Pairs:
    """Errors of P and dS, (b, h, g, r, c), or (b, h, g, r, 1) if all keys of a row share them."""

    P: Float64Array
    """Error of P o D, the factor on dO."""
    dS: Float64Array
    """Error of dS, the factor on K and Q, before it is multiplied by tau."""


@dataclass(frozen=True)
class _Totals:
    """Sums over all blocks."""

    errors: Sums
    """Proved errors of P and dS, propagated through the products."""
    magnitudes: Sums
    """Magnitudes of the terms, including their errors."""
    squares: Sums
    """Squares of the expected errors of single pairs of a row and a key."""
    common: Sums
    """Expected errors that a row shares."""
    products: Sums
    """Squares of the terms."""
    terms: Sums
    """Number of terms."""
    runs: Sums
    """Magnitudes of the sums over each head's rows, or over keys, which bound partial sums."""
    bounds: Sums
    """Cauchy's bound on `runs`, attained if each head's summands are equal."""
    unconstrained: Sums
    """Positive where any result is accepted."""

    @classmethod
    def zeros(cls, problem: BackwardProblem, part: Part) -> _Totals:
        return cls(*(Sums.zeros(problem, part) for _ in dataclasses.fields(cls)))

    def tolerances(
        self, answer: Mapping[str, Float64Array], rounding: Roundings, largest: float
    ) -> dict[str, Tolerance]:
        by_name = {field.name: getattr(self, field.name).as_outputs() for field in dataclasses.fields(self)}
        found = {}
        for name, exact in answer.items():
            total = {what: sums[name] for what, sums in by_name.items()}
            terms, size = total["terms"] + SUM_ROUNDINGS, np.abs(exact)
            allowed = total["errors"] + rounding.proved_sum(terms) * total["magnitudes"] + TINY * terms
            allowed += np.maximum(SLACK * rounding.output * (size + allowed), rounding.output_step)
            expected = np.sqrt(total["squares"]) + total["common"] + rounding.factor * size
            # If a head's summands have about the same size and sign, many may be equal.
            alike = np.square(total["runs"]) > ABOUT_EQUAL * np.square(total["bounds"])
            steps = np.where(alike, rounding.proved_sum(terms), rounding.expected_sum(terms))
            expected += steps * np.sqrt(np.square(total["runs"]) + total["products"]) + TINY * terms
            expected += np.maximum(SLACK * rounding.output * (size + expected), rounding.output_step)
            unconstrained = (total["unconstrained"] > 0) | ~(size + allowed <= largest)
            allowed[unconstrained] = expected[unconstrained] = np.inf
            # Gradients are exactly 0 for rows that see no key, and keys that no row sees.
            for tier in (allowed, expected):
                tier[(total["terms"] == 0) & (total["unconstrained"] == 0)] = 0.0
            found[name] = Tolerance(allowed, np.fmin(expected, allowed))
        return found


def error_budget(
    problem: BackwardProblem,
    inputs: Arrays,
    answer: Mapping[str, Float64Array],
    numerics: Numerics,
    part: Part = WHOLE,
) -> dict[str, Tolerance]:
    """Return the budget of each output for the given inputs; `answer` is the oracle's."""
    rounding, totals = Roundings.of(problem, numerics), _Totals.zeros(problem, part)
    kept = answer.blocks if isinstance(answer, Reference) else None
    with np.errstate(over="ignore", invalid="ignore"):
        for block in kept or blocks_of(problem, inputs, part):
            errors = _proved(block, rounding)
            totals.errors.add(block, *products_of(block, errors.dS, errors.P, np.abs))
            sizes = _Pairs(block.dropped_p + errors.P, np.abs(block.ds) + errors.dS)
            totals.magnitudes.add(block, *products_of(block, sizes.dS, sizes.P, np.abs))
            _add_expected(totals, block, rounding)
            totals.runs.add(block, *_runs(block))
            seen = np.broadcast_to(block.visible, block.s.shape)
            totals.terms.add(block, *_counts(block, seen))
            products, bounds = _products_and_bounds(block, seen)
            totals.products.add(block, *products)
            totals.bounds.add(block, *bounds)
            totals.unconstrained.add(
                block, *_counts(block, seen & (block.nonfinite | _may_overflow(block, sizes, problem)))
            )
    return totals.tolerances(answer, rounding, LARGEST[problem.dtype])


def _runs(block: Block) -> tuple[Float64Array | None, Float64Array | None, Float64Array | None]:
    """Return the block's contribution to `_Totals.runs` of dQ, dK and dV."""
    tau = abs(block.problem.tau)
    return (
        None if block.rows is None else tau * np.abs(block.ds @ block.k),
        None if block.keys is None else tau * np.abs(block.ds.mT @ block.q).sum(axis=2),
        None if block.keys is None else np.abs(block.dropped_p.mT @ block.do).sum(axis=2),
    )


def _products_and_bounds(
    block: Block, seen: npt.NDArray[np.bool_]
) -> tuple[tuple[Float64Array | None, ...], tuple[Float64Array | None, ...]]:
    """Return the block's contributions to `_Totals.products` and `_Totals.bounds`, each for dQ, dK and dV."""
    tau = np.square(block.problem.tau)
    P, dS = np.square(block.dropped_p), np.square(block.ds)
    dQ: tuple[Float64Array | None, Float64Array | None] = (None, None)
    dK, dV = dQ, dQ
    if block.rows is not None:
        squares = tau * (dS @ np.square(block.k))
        dQ = squares, np.sqrt(seen.sum(axis=-1, dtype=np.float64)[..., None] * squares)
    if block.keys is not None:
        rows_seeing = seen.sum(axis=-2, dtype=np.float64)[..., None]  # of each head
        dK, dV = (
            (squares.sum(axis=2), np.sqrt(rows_seeing * squares).sum(axis=2))
            for squares in ((tau * dS).mT @ np.square(block.q), P.mT @ np.square(block.do))
        )
    return (dQ[0], dK[0], dV[0]), (dQ[1], dK[1], dV[1])


def _counts(block: Block, pairs: npt.NDArray[np.bool_]) -> tuple[Float64Array | None, ...]:
    """Return the number of pairs of each row, for dQ, and of each key, for dK and dV."""
    of_rows = None if block.rows is None else pairs.sum(axis=-1, dtype=np.float64)[..., None]
    of_keys = None if block.keys is None else pairs.sum(axis=(2, 3), dtype=np.float64)[..., None]
    return of_rows, of_keys, of_keys


def _proved(block: Block, rounding: Roundings) -> _Pairs:
    """Return the errors of equation (1), including the rounding of factors."""
    p, ds, dp_minus_delta = block.p, np.abs(block.ds), np.abs(block.dp - block.delta)
    d, seen = block.q.shape[-1], block.visible
    exponent = _score_error(block, rounding) + rounding.argument * _arguments(block) + EXP
    if rounding.stored:
        exponent += SLACK * rounding.stored * np.abs(block.s) + rounding.stored_step
    exponent += rounding.frame * (np.abs(block.s) + np.abs(block.lse))
    P = np.where(seen, p * np.expm1(SLACK * exponent) + TINY, 0.0)
    products = rounding.proved_sum(d + 1) * (np.abs(block.do) @ np.abs(block.v).mT) + _flushed(block.do, block.v)
    if rounding.stored:
        products += np.maximum(rounding.stored * (np.abs(block.products) + products), rounding.stored_step)
    if block.problem.dropout:
        products = block.kept * (products + DROPOUT_ERROR * (np.abs(block.products) + products))
    delta = rounding.proved_sum(d + 1) * (np.abs(block.do) * np.abs(block.o)).sum(axis=-1, keepdims=True)
    delta += _flushed_of_row(block)
    differences = products + delta + 3 * U * (np.abs(block.dp) + np.abs(block.delta) + products + delta)
    dS = np.where(seen, P * dp_minus_delta + (p + P) * differences + _step_of_dS(TINY, block.problem.tau), 0.0)
    if rounding.factor:
        step = _step_of_dS(rounding.factor_step, block.problem.tau)
        dS += np.where(seen, np.maximum(rounding.factor * (ds + dS), step), 0.0)
        P += np.where(seen, np.maximum(rounding.factor * (p + P), rounding.factor_step), 0.0)
    if block.problem.dropout:
        P = block.kept * (P + DROPOUT_ERROR * (p + P))
    return _Pairs(P, dS)


def _step_of_dS(step: float, tau: float) -> float:
    """Return the absolute error of dS if dS, or tau dS, is stored with this step."""
    return step * max(1.0, 1 / abs(tau) if tau else 1.0)


def _score_error(block: Block, rounding: Roundings) -> Float64Array:
    """Return sigma, the error of a score."""
    d, tau = block.q.shape[-1], abs(block.problem.tau)
    sigma: Float64Array = (
        rounding.proved_sum(d + SCORE_ROUNDINGS) * tau * (np.abs(block.q) @ np.abs(block.k).mT) + d * TINY
    )
    return sigma


def _flushed(x: Float64Array, y: Float64Array) -> Float64Array:
    """Return t of all pairs of rows of x and y: (..., r, d) and (..., c, d) -> (..., r, c)."""
    rows, columns = (np.abs(each).sum(axis=-1) for each in (x, y))
    flushed: Float64Array = TINY * (x.shape[-1] + rows[..., :, None] + columns[..., None, :])
    return flushed


def _flushed_of_row(block: Block) -> Float64Array:
    """Return t of dO and O of each row, (b, h, g, r, 1)."""
    magnitudes = np.abs(block.do) + np.abs(block.o) + 1
    flushed: Float64Array = TINY * magnitudes.sum(axis=-1, keepdims=True)
    return flushed


def _equal(square: Float64Array, terms: Float64Array | int, squares: Float64Array) -> npt.NDArray[np.bool_]:
    """Return where all terms of a sum are equal, by Cauchy's bound, so that its roundings are equal and not random.

    `square` is the square of the sum, and `squares` the sum of squares.
    """
    return square > (1 - 1e-4) * terms * squares


def _arguments(block: Block) -> Float64Array:
    """Return |s - lse|, limited to arguments whose exponentials are not 0 in float32."""
    return np.minimum(np.abs(block.s - block.lse), LARGEST_ARGUMENT)


def _add_expected(totals: _Totals, block: Block, rounding: Roundings) -> None:
    p, ds, dp_minus_delta, tau = block.p, block.ds, block.dp - block.delta, block.problem.tau
    d, seen = block.q.shape[-1], block.visible
    square, squares = np.square(block.s), tau * tau * (np.square(block.q) @ np.square(block.k).mT)
    sigma = rounding.expected_sum(d + SCORE_ROUNDINGS) * np.sqrt(square + squares)
    repeating = seen & (_equal(square, d, squares) | mostly_equal_products(block.q, block.k))
    if repeating.any():
        sigma = np.where(repeating, 0.0, sigma)
        alike_p = np.where(repeating, p * np.expm1(_score_error(block, rounding)), 0.0)
        totals.common.add(block, *products_of(block, alike_p * np.abs(dp_minus_delta), block.kept * alike_p, np.abs))
    exponential = (rounding.argument + U) * _arguments(block) + EXP + rounding.frame * np.abs(block.s)
    exponent = np.square(sigma) + np.square(LAMBDA * exponential) + np.square(LAMBDA * rounding.stored * block.s)
    P = np.where(seen, p * np.expm1(np.sqrt(exponent)) + TINY, 0.0)
    squares_of_v = np.square(block.do) @ np.square(block.v).mT
    products = rounding.expected_sum(d + 1) * np.sqrt(np.square(block.products) + squares_of_v)
    products = np.square(products) + np.square(LAMBDA * rounding.stored * block.products)
    products += np.square(_flushed(block.do, block.v))
    if block.problem.dropout:
        products = np.square(block.kept) * (products + np.square(DROPOUT_ERROR * block.products))
    rounded = 3 * U * LAMBDA * (np.abs(block.dp) + np.abs(block.delta))
    dS = np.square(P * dp_minus_delta) + np.square(p + P) * (products + np.square(rounded))
    dS += np.where(seen, np.square(_step_of_dS(TINY, tau)), 0.0)
    if rounding.factor:
        step, largest_ds = _step_of_dS(rounding.factor_step, tau), np.abs(ds) + np.sqrt(dS)
        dS += np.where(seen, np.square(LAMBDA * np.maximum(rounding.factor * largest_ds, step)), 0.0)
    weights = np.square(P)
    if rounding.factor:
        weights += np.where(seen, np.square(LAMBDA * np.maximum(rounding.factor * (p + P), rounding.factor_step)), 0.0)
    if block.problem.dropout:
        weights = np.square(block.kept) * (weights + np.square(DROPOUT_ERROR * (p + P)))

    of_row = rounding.frame * np.abs(block.lse)
    magnitudes = np.square(block.do * block.o).sum(axis=-1, keepdims=True)
    # sum_j P_ij dP_ij = delta_i: if dP are nearly equal along a row, all are rounded alike.
    delta = rounding.expected_sum(d + 1) * np.sqrt(np.square(block.delta) + magnitudes) + rounding.stored * np.abs(
        block.delta
    )
    delta += _flushed_of_row(block)
    dQ, *_ = products_of(block, dS, weights, np.square)
    dS_of_row = np.square(of_row * np.abs(ds) + delta * (p + P))
    _, dK, dV = products_of(block, dS + dS_of_row, weights + np.square(of_row * block.dropped_p), np.square)
    totals.squares.add(block, dQ, dK, dV)
    if block.rows is not None:
        alike = of_row * np.abs(ds @ block.k) + delta * np.abs(p @ block.k)
        totals.common.add(block, abs(tau) * alike, None, None)


def _may_overflow(block: Block, sizes: _Pairs, problem: BackwardProblem) -> npt.NDArray[np.bool_]:
    """Return where intermediate results may overflow the dtype in which they are factors or stored."""
    largest = LARGEST[problem.dtype] / SLACK
    over: npt.NDArray[np.bool_] = ~(sizes.dS * max(1.0, abs(problem.tau)) <= largest)
    over |= (
        ~(np.maximum(np.abs(block.dp), np.abs(block.products)) <= largest)
        | ~(np.abs(block.s) <= largest)
        | ~(sizes.P <= largest)
    )
    return over
