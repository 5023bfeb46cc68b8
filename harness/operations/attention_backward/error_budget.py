"""How far off may correct gradients be on these very inputs? Two limits for every element, derived here.

Notation as in `oracle`; u = 2^-24; g_n = n a, with a = u the error of an addition that rounds to nearest and 2u of one
on tensor cores, which cut off; |.| of a matrix is element by element. Constants and their sources:
`harness.model.arithmetic.rounding`.

**What a kernel computes.** Whatever its loops, it recomputes weights from lse and multiplies:

    P^_ij = P_ij exp(e_ij)
        |e_ij| <= sigma_ij + stored_ij      sigma = g_(d + 3) |tau| |q_i|.|k_j|, products and sums in any order, the
                                            scale's rounding and product; stored = u_16 (|s| + sigma) where S goes
                                            through memory in 16 bits
               + argument |s_ij - lse_i| + frame (|s_ij| + |lse_i|) + 4u    subtraction, log2 e, the exponential
    dP^_ij = dP_ij + f_ij,  delta^_i = delta_i + h_i
        |f_ij| <= g_(d + 1) |dO_i|.|v_j| + t(dO_i, v_j)  (+ u_16 |dP^| where dP goes through memory in 16 bits)
        |h_i| <= g_(d + 1) |dO_i|.|O_i| + t(dO_i, O_i)
        t(x, y) = (d + sum |x| + sum |y|) 2^-126    products and factors too small to be normal, flushed to zero
    dS^_ij = P^ (dP^ - delta^), two roundings; what of it, or of tau dS^, is too small to be normal is flushed to zero

so that, to first order and with the products of errors kept,

    |dS^ - dS| <= P (e^|e| - 1) |dP - delta| + P e^|e| (|f| + |h| + 3u (|dP| + |delta| + |f| + |h|))             (1)

Under dropout D multiplies P, as a factor of dV, and dP: what either is off by is so, too, and 2u of it come besides,
for D's own rounding and its product. delta and dS are as above.

And, where P and dS are factors of 16 bits, their rounding, u_16 of each and a step where they are too small to be
normal. Sums over n keys or rows, in any order, by atomics or over the heads of a group, add g_(n + 2) of the sum of
magnitudes.

**Proved.** (1) through the products:

    dQ_i: tau sum_j |dS^ - dS| |k_j| + g tau sum_j |dS^| |k_j|        and so dK, dV

**Expected.** Higham and Mary 2019 (SIAM J. Sci. Comput. 41, A2815), as in the forward pass: independent roundings of n
terms come to lambda sqrt(n) u, not n u, and errors that differ from pair to pair add up in squares. Five do not: what
lse and delta are off by is common to a row, so it is added plainly over keys, and in squares over rows; scores of which
most products are equal err alike, so what is proved of them is added plainly; equal weights are rounded alike to 16
bits, which adds u_16 of the answer besides, and so are equal dP; additions on tensor cores err to one side.

At last the output is rounded. Rows and keys that a number which is not finite reaches have nothing promised (infinity),
nor have those whose dS or dP may leave float16 or whose weights exceed what lse says by so much that they overflow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
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
from harness.operations.attention_backward.oracle import Arrays, Block, Sums, blocks_of, over_group
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
"""As a share of Cauchy's bound: a mean of terms that is at least 0.7 of their root mean square."""
DROPOUT_ERROR = 2 * U
"""Error of 1 / (1 - P), rounded, and of a product with it."""
SCORE_ROUNDINGS, SUM_ROUNDINGS = 3, 2
"""Besides one per term: scale, its product and log2 e's; of a sum of products, tau's and the last."""


@dataclass(frozen=True)
class Roundings:
    """Relative errors, unless they are said to be absolute."""

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
        """What one rounding amounts to where a variant that declares `numerics` solves `problem`."""
        u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
        sixteen = problem.dtype != "float32"
        stores, rounds = (sixteen and x == "problem" for x in (numerics.scores, numerics.weights))
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
        """What that many roundings in a sum come to, relative to the sum of magnitudes."""
        return SLACK * self.addition * terms

    def expected_sum(self, terms: Float64Array | int) -> Float64Array | float:
        """What they are expected to come to, relative to its partial sums; never more than `proved_sum`."""
        steps = np.minimum(LAMBDA * np.sqrt(terms), terms) if self.nearest else terms
        return SLACK * self.addition * steps


@dataclass(frozen=True)
class _Pairs:
    """What P and dS of rows and keys are off by: (b, h, g, r, c), or (b, h, g, r, 1) for what a row has once."""

    P: Float64Array
    """As dO is multiplied by it: P o D."""
    dS: Float64Array
    """As K and Q are, not yet times tau."""


@dataclass(frozen=True)
class _Totals:
    """What blocks are added up to."""

    errors: Sums
    """Proved errors of P and dS, carried through the products."""
    magnitudes: Sums
    """Magnitudes of the terms, their errors included."""
    squares: Sums
    """Squares of the expected errors of single pairs of a row and a key."""
    common: Sums
    """Errors that are expected of a whole row alike."""
    products: Sums
    """Squares of what is added up."""
    terms: Sums
    """How many are added up."""
    runs: Sums
    """Sums over the rows of each head, or over keys, in magnitude: as large as partial sums become."""
    bounds: Sums
    """What `runs` would come to if each head's summands were equal: Cauchy's bound."""
    open: Sums
    """Above 0 where nothing is promised."""

    @classmethod
    def zeros(cls, problem: BackwardProblem, part: Part) -> _Totals:
        return cls(*(Sums.zeros(problem, part) for _ in dataclasses.fields(cls)))

    def tolerances(self, answer: Mapping[str, Float64Array], r: Roundings, largest: float) -> dict[str, Tolerance]:
        by_name = {field.name: getattr(self, field.name).as_outputs() for field in dataclasses.fields(self)}
        found = {}
        for name, exact in answer.items():
            total = {what: sums[name] for what, sums in by_name.items()}
            terms, size = total["terms"] + SUM_ROUNDINGS, np.abs(exact)
            allowed = total["errors"] + r.proved_sum(terms) * total["magnitudes"] + TINY * terms
            allowed += np.maximum(SLACK * r.output * (size + allowed), r.output_step)
            expected = np.sqrt(total["squares"]) + total["common"] + r.factor * size
            # Of a head's summands of about one size and sign many may be equal, whatever those of others are.
            alike = np.square(total["runs"]) > ABOUT_EQUAL * np.square(total["bounds"])
            steps = np.where(alike, r.proved_sum(terms), r.expected_sum(terms))
            expected += steps * np.sqrt(np.square(total["runs"]) + total["products"]) + TINY * terms
            expected += np.maximum(SLACK * r.output * (size + expected), r.output_step)
            open_ = (total["open"] > 0) | ~(size + allowed <= largest)
            allowed[open_] = expected[open_] = np.inf
            # Nothing comes to a row, or key, that sees nobody.
            for tier in (allowed, expected):
                tier[(total["terms"] == 0) & (total["open"] == 0)] = 0.0
            found[name] = Tolerance(allowed, np.fmin(expected, allowed))
        return found


def error_budget(
    problem: BackwardProblem,
    inputs: Arrays,
    answer: Mapping[str, Float64Array],
    numerics: Numerics,
    part: Part = WHOLE,
) -> dict[str, Tolerance]:
    """The budget for these very inputs, by output; `answer` is the oracle's."""
    r, totals = Roundings.of(problem, numerics), _Totals.zeros(problem, part)
    kept = answer.blocks if isinstance(answer, Reference) else None
    with np.errstate(over="ignore", invalid="ignore"):
        for block in kept or blocks_of(problem, inputs, part):
            worst = _proved(block, r)
            totals.errors.add(block, *_through(block, worst, np.abs))
            sizes = _Pairs(block.dropped_p + worst.P, np.abs(block.ds) + worst.dS)
            totals.magnitudes.add(block, *_through(block, sizes, np.abs))
            _add_expected(totals, block, r)
            totals.runs.add(block, *_runs(block))
            seen = np.broadcast_to(block.visible, block.s.shape)
            totals.terms.add(block, *_counts(block, seen))
            products, bounds = _products_and_bounds(block, seen)
            totals.products.add(block, *products)
            totals.bounds.add(block, *bounds)
            totals.open.add(block, *_counts(block, seen & (block.spoilt | _may_overflow(block, sizes, problem))))
    return totals.tolerances(answer, r, LARGEST[problem.dtype])


def _through(
    block: Block, pairs: _Pairs, of: Callable[[Float64Array], Float64Array]
) -> tuple[Float64Array | None, Float64Array | None, Float64Array | None]:
    """Sums over pairs times `of` what they are multiplied by, which is the magnitude or the square: dQ, dK and dV."""
    tau = of(np.float64(block.problem.tau))
    return (
        None if block.rows is None else tau * (pairs.dS @ of(block.k)),
        None if block.keys is None else tau * over_group(pairs.dS, of(block.q)),
        None if block.keys is None else over_group(pairs.P, of(block.do)),
    )


def _runs(block: Block) -> tuple[Float64Array | None, Float64Array | None, Float64Array | None]:
    """The block's part of `_Totals.runs`: dQ, dK and dV."""
    tau = abs(block.problem.tau)
    return (
        None if block.rows is None else tau * np.abs(block.ds @ block.k),
        None if block.keys is None else tau * np.abs(block.ds.mT @ block.q).sum(axis=2),
        None if block.keys is None else np.abs(block.dropped_p.mT @ block.do).sum(axis=2),
    )


def _products_and_bounds(
    block: Block, seen: npt.NDArray[np.bool_]
) -> tuple[tuple[Float64Array | None, ...], tuple[Float64Array | None, ...]]:
    """The block's part of `_Totals.products` and of `_Totals.bounds`: dQ, dK and dV each."""
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
    """How many pairs there are of each row, and twice of each key."""
    of_rows = None if block.rows is None else pairs.sum(axis=-1, dtype=np.float64)[..., None]
    of_keys = None if block.keys is None else pairs.sum(axis=(2, 3), dtype=np.float64)[..., None]
    return of_rows, of_keys, of_keys


def _proved(block: Block, r: Roundings) -> _Pairs:
    """Equation (1), the rounding of factors included."""
    p, ds, diff = block.p, np.abs(block.ds), np.abs(block.dp - block.delta)
    d, seen = block.q.shape[-1], block.visible
    exponent = _dot_error(block, r) + r.argument * _arguments(block) + EXP
    if r.stored:
        exponent += SLACK * r.stored * np.abs(block.s) + r.stored_step
    exponent += r.frame * (np.abs(block.s) + np.abs(block.lse))
    P = np.where(seen, p * np.expm1(SLACK * exponent) + TINY, 0.0)
    products = r.proved_sum(d + 1) * (np.abs(block.do) @ np.abs(block.v).mT) + _flushed(block.do, block.v)
    if r.stored:
        products += np.maximum(r.stored * (np.abs(block.products) + products), r.stored_step)
    if block.problem.dropout:
        products = block.kept * (products + DROPOUT_ERROR * (np.abs(block.products) + products))
    delta = r.proved_sum(d + 1) * (np.abs(block.do) * np.abs(block.o)).sum(axis=-1, keepdims=True)
    delta += _flushed_of_row(block)
    differences = products + delta + 3 * U * (np.abs(block.dp) + np.abs(block.delta) + products + delta)
    dS = np.where(seen, P * diff + (p + P) * differences + _step_of_dS(TINY, block.problem.tau), 0.0)
    if r.factor:
        step = _step_of_dS(r.factor_step, block.problem.tau)
        dS += np.where(seen, np.maximum(r.factor * (ds + dS), step), 0.0)
        P += np.where(seen, np.maximum(r.factor * (p + P), r.factor_step), 0.0)
    if block.problem.dropout:
        P = block.kept * (P + DROPOUT_ERROR * (p + P))
    return _Pairs(P, dS)


def _step_of_dS(step: float, tau: float) -> float:
    """Absolute, of dS not yet times tau, where it is stored with such a step times tau already, or before that."""
    return step * max(1.0, 1 / abs(tau) if tau else 1.0)


def _dot_error(block: Block, r: Roundings) -> Float64Array:
    """Sigma, the error of a score."""
    d, tau = block.q.shape[-1], abs(block.problem.tau)
    sigma: Float64Array = r.proved_sum(d + SCORE_ROUNDINGS) * tau * (np.abs(block.q) @ np.abs(block.k).mT) + d * TINY
    return sigma


def _flushed(x: Float64Array, y: Float64Array) -> Float64Array:
    """What t is of all rows of x and all of y: (..., r, d) and (..., c, d) -> (..., r, c)."""
    rows, columns = (np.abs(each).sum(axis=-1) for each in (x, y))
    flushed: Float64Array = TINY * (x.shape[-1] + rows[..., :, None] + columns[..., None, :])
    return flushed


def _flushed_of_row(block: Block) -> Float64Array:
    """What t is of dO and O of each row: (b, h, g, r, 1)."""
    magnitudes = np.abs(block.do) + np.abs(block.o) + 1
    flushed: Float64Array = TINY * magnitudes.sum(axis=-1, keepdims=True)
    return flushed


def _equal(square: Float64Array, terms: Float64Array | int, squares: Float64Array) -> npt.NDArray[np.bool_]:
    """Where all terms of a sum are equal, by Cauchy: then so are its roundings, and nothing is random about them.

    `square` is the sum's, `squares` the sum of squares.
    """
    equal: npt.NDArray[np.bool_] = square > (1 - 1e-4) * terms * squares
    return equal


def _arguments(block: Block) -> Float64Array:
    """|s - lse|, up to where exponentials are 0 in float32."""
    arguments: Float64Array = np.minimum(np.abs(block.s - block.lse), LARGEST_ARGUMENT)
    return arguments


def _add_expected(totals: _Totals, block: Block, r: Roundings) -> None:
    p, ds, diff, tau = block.p, block.ds, block.dp - block.delta, block.problem.tau
    d, seen = block.q.shape[-1], block.visible
    square, squares = np.square(block.s), tau * tau * (np.square(block.q) @ np.square(block.k).mT)
    dot = r.expected_sum(d + SCORE_ROUNDINGS) * np.sqrt(square + squares)
    repeating = seen & (_equal(square, d, squares) | mostly_equal_products(block.q, block.k))
    if repeating.any():
        dot = np.where(repeating, 0.0, dot)
        alike_p = np.where(repeating, p * np.expm1(_dot_error(block, r)), 0.0)
        totals.common.add(block, *_through(block, _Pairs(block.kept * alike_p, alike_p * np.abs(diff)), np.abs))
    exponential = (r.argument + U) * _arguments(block) + EXP + r.frame * np.abs(block.s)
    exponent = np.square(dot) + np.square(LAMBDA * exponential) + np.square(LAMBDA * r.stored * block.s)
    P = np.where(seen, p * np.expm1(np.sqrt(exponent)) + TINY, 0.0)
    squares_of_v = np.square(block.do) @ np.square(block.v).mT
    products = r.expected_sum(d + 1) * np.sqrt(np.square(block.products) + squares_of_v)
    products = np.square(products) + np.square(LAMBDA * r.stored * block.products)
    products += np.square(_flushed(block.do, block.v))
    if block.problem.dropout:
        products = np.square(block.kept) * (products + np.square(DROPOUT_ERROR * block.products))
    rounded = 3 * U * LAMBDA * (np.abs(block.dp) + np.abs(block.delta))
    dS = np.square(P * diff) + np.square(p + P) * (products + np.square(rounded))
    dS += np.where(seen, np.square(_step_of_dS(TINY, tau)), 0.0)
    if r.factor:
        step, largest_ds = _step_of_dS(r.factor_step, tau), np.abs(ds) + np.sqrt(dS)
        dS += np.where(seen, np.square(LAMBDA * np.maximum(r.factor * largest_ds, step)), 0.0)
    weights = np.square(P)
    if r.factor:
        weights += np.where(seen, np.square(LAMBDA * np.maximum(r.factor * (p + P), r.factor_step)), 0.0)
    if block.problem.dropout:
        weights = np.square(block.kept) * (weights + np.square(DROPOUT_ERROR * (p + P)))

    of_row = r.frame * np.abs(block.lse)
    magnitudes = np.square(block.do * block.o).sum(axis=-1, keepdims=True)
    # sum_j P_ij dP_ij = delta_i: where dP hardly differ along a row, all are rounded alike.
    delta = r.expected_sum(d + 1) * np.sqrt(np.square(block.delta) + magnitudes) + r.stored * np.abs(block.delta)
    delta += _flushed_of_row(block)
    rows = _Pairs(np.square(of_row * block.dropped_p), np.square(of_row * np.abs(ds) + delta * (p + P)))
    dQ, *_ = _through(block, _Pairs(weights, dS), np.square)
    _, dK, dV = _through(block, _Pairs(weights + rows.P, dS + rows.dS), np.square)
    totals.squares.add(block, dQ, dK, dV)
    if block.rows is not None:
        alike = of_row * np.abs(ds @ block.k) + delta * np.abs(p @ block.k)
        totals.common.add(block, abs(tau) * alike, None, None)


def _may_overflow(block: Block, sizes: _Pairs, problem: BackwardProblem) -> npt.NDArray[np.bool_]:
    """Where what is on the way may leave the dtype that it is a factor or stored in."""
    largest = LARGEST[problem.dtype] / SLACK
    over: npt.NDArray[np.bool_] = ~(sizes.dS * max(1.0, abs(problem.tau)) <= largest)
    over |= (
        ~(np.maximum(np.abs(block.dp), np.abs(block.products)) <= largest)
        | ~(np.abs(block.s) <= largest)
        | ~(sizes.P <= largest)
    )
    return over
