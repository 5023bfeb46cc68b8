"""Derives the error budget of gradients: the largest errors that a correct kernel can have on the given inputs.

Each element has two limits, a proved and an expected one. Notation as in `oracle`; u = 2^-24; g_n = n a, where a is
the error of an addition: u if it rounds to nearest, and 2u on tensor cores, which truncate. |.| of a matrix is
elementwise. Constants and their sources are in `harness.model.arithmetic.rounding`.

**What a kernel computes.** With any loops, it recomputes weights from lse and multiplies:

    P^_ij = P_ij exp(e_ij)
        |e_ij| <= sigma_ij + stored_ij      sigma = g_(d + 3) |tau| |q_i|.|k_j|, products and sums in any order, the
                                            scale's rounding and product, and what score terms make of that error, as
                                            in the forward pass; stored = u_16 (|s| + sigma) if S is stored in 16 bits
               + argument |s_ij - lse_i| + frame (|s_ij| + |lse_i|) + 4u    subtraction, log2 e, the exponential
    dP^_ij = dP_ij + f_ij,  delta^_i = delta_i + h_i
        |f_ij| <= g_(e + 1) |dO_i|.|v_j| + t(dO_i, v_j)  (+ u_16 |dP^| if dP is stored in 16 bits)
        |h_i| <= g_(e + 1) |dO_i|.|O_i| + t(dO_i, O_i)  e = elements of a row of V
        t(x, y) = (e + sum |x| + sum |y|) 2^-126    subnormal products and factors, flushed to zero
    dS^_ij = P^ (dP^ - delta^), two roundings; subnormal dS^ or tau dS^ are flushed to zero

so, to first order but including products of errors,

    |dS^ - dS| <= P (e^|e| - 1) |dP - delta| + P e^|e| (|f| + |h| + 3u (|dP| + |delta| + |f| + |h|))             (1)

A cap multiplies dS by its derivative f', whose error is phi (`softcap.Capped`). With dZ = f' dS in products with
K and Q,

    |dZ^ - dZ| <= |dS^ - dS| (f' + phi) + |dS| phi + 2u (|dS| + |dS^ - dS|) (f' + phi)

dbias is a sum of dS in float32; if dS is a 16-bit factor, the rounded one may be summed. The module `sinks` has dsinks.
With dropout, D multiplies P (as a factor of dV) and dP, and their errors; rounding D and its product adds 2u. delta and
dS are as above.

If P and dS are 16-bit factors, their roundings are added: u_16 of each, or a step if they are subnormal. Sums over n
keys or rows, in any order, by atomics or over the heads of a group, add g_(n + 2) of the sum of magnitudes.

**Proved.** (1) through the products:

    dQ_i: tau sum_j |dZ^ - dZ| |k_j| + g tau sum_j |dZ^| |k_j|        and so dK, dV, dbias

**Expected.** Higham and Mary 2019 (SIAM J. Sci. Comput. 41, A2815), as in the forward pass: independent roundings of n
terms sum to lambda sqrt(n) u, not n u, and independent errors of pairs add up in squares. There are six exceptions. A
row shares the errors of lse and delta, so they are added linearly over keys, and in squares over rows. Scores with
mostly equal products have equal errors, so their proved errors are added linearly, and so are errors of score terms.
Equal weights are rounded alike to 16 bits, which adds u_16 of the answer, and so are equal dP. Additions on tensor
cores err in one direction. Flushing to zero makes every weight and dS smaller, never larger.

The rounding of the output is added last. The budget is infinite for rows and keys affected by nonfinite numbers, and
for those whose dS or dP may overflow in float16 or whose weights overflow because lse is far too small.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.model.arithmetic.rounding import (
    EXP,
    LAMBDA,
    LARGEST,
    SMALLEST_STEP,
    UNIT_ROUNDOFF,
    U,
)
from harness.model.array_types import Arrays, Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Part, Tolerance
from harness.model.reference import Reference
from harness.operations.attention_backward.oracle import (
    DBIAS,
    Block,
    Summands,
    Sums,
    blocks_of,
    over_group,
    products_of,
)
from harness.operations.attention_backward.problem import BackwardProblem
from harness.operations.attention_backward.rounding_sizes import ABOUT_EQUAL, SLACK, SUM_ROUNDINGS, TINY, Roundings
from harness.operations.attention_backward.score_errors import ScoreErrorsOfBlock, before_terms
from harness.operations.attention_backward.sinks import DSINKS, SinkRows, sink_errors

LARGEST_ARGUMENT = 104.0
"""exp(-104) is below the smallest float32."""
DROPOUT_ERROR = 2 * U
"""Error of the rounded 1 / (1 - P) and of a product with it."""


@dataclass(frozen=True)
class _Pairs:
    """Errors of P and dS, (b, h, g, r, c), or (b, h, g, r, 1) if all keys of a row share them."""

    P: Float64Array
    """Error of P o D, the factor on dO."""
    dS: Float64Array
    """Error of dS, the summand of dbias."""
    dZ: Float64Array
    """Error of dZ, the factor on K and Q, before it is multiplied by tau."""


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
        self, answer: Mapping[str, Float64Array], rounding: Roundings, problem: BackwardProblem
    ) -> dict[str, Tolerance]:
        by_name = {field.name: getattr(self, field.name).as_outputs() for field in dataclasses.fields(self)}
        found = {}
        smallest_tau = min(abs(problem.tau), 1.0) or 1.0
        for name in by_name["errors"]:
            exact, stored = answer[name], "float32" if name == DBIAS else problem.dtype
            total = {what: sums[name] for what, sums in by_name.items()}
            terms, size = total["terms"] + SUM_ROUNDINGS, np.abs(exact)
            allowed = total["errors"] + rounding.proved_sum(terms) * total["magnitudes"] + TINY * terms
            allowed += _output_error(size + allowed, stored)
            expected = np.sqrt(total["squares"]) + total["common"] + rounding.factor * size
            # If a head's summands have about the same size and sign, many may be equal.
            alike = np.square(total["runs"]) > ABOUT_EQUAL * np.square(total["bounds"])
            steps = np.where(alike, rounding.proved_sum(terms), rounding.expected_sum(terms))
            expected += steps * np.sqrt(np.square(total["runs"]) + total["products"]) + TINY * terms
            expected += _output_error(size + expected, stored)
            unconstrained = (total["unconstrained"] > 0) | ~(size + allowed <= LARGEST[stored])
            # Sums of float32, which some kernels multiply by tau last.
            unconstrained |= ~(SLACK * total["magnitudes"] <= smallest_tau * LARGEST["float32"])
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
            scored = ScoreErrorsOfBlock.of(block, rounding)
            errors = _proved(block, rounding, scored)
            totals.errors.add(block, products_of(block, errors.dZ, errors.P, errors.dS, np.abs))
            sizes = _Pairs(block.dropped_p + errors.P, np.abs(block.ds) + errors.dS, np.abs(block.dz) + errors.dZ)
            totals.magnitudes.add(block, products_of(block, sizes.dZ, sizes.P, sizes.dS, np.abs))
            _add_expected(totals, block, rounding, scored)
            totals.runs.add(block, _runs(block))
            seen = np.broadcast_to(block.visible, block.s.shape)
            totals.terms.add(block, _counts(block, seen))
            products, bounds = _products_and_bounds(block, seen)
            totals.products.add(block, products)
            totals.bounds.add(block, bounds)
            unconstrained = seen & (block.nonfinite | _may_overflow(block, sizes, scored, problem))
            totals.unconstrained.add(block, _counts(block, unconstrained))
        tolerances = totals.tolerances(answer, rounding, problem)
        if problem.sinks:
            tolerances[DSINKS] = _tolerance_of_sinks(problem, inputs, answer[DSINKS], rounding, part)
    return tolerances


def _output_error(size: Float64Array, dtype: str) -> Float64Array:
    """Return the error of storing numbers of these magnitudes."""
    stored: Float64Array = np.maximum(SLACK * UNIT_ROUNDOFF[dtype] * size, SMALLEST_STEP[dtype])
    return stored


def _tolerance_of_sinks(
    problem: BackwardProblem, inputs: Arrays, exact: Float64Array, rounding: Roundings, part: Part
) -> Tolerance:
    rows, e, terms = SinkRows.of(problem, inputs, part), problem.v_width, problem.batch * problem.q_len + SUM_ROUNDINGS
    products = np.abs(rows.do) * np.abs(rows.o)
    flushed = TINY * (np.abs(rows.do) + np.abs(rows.o) + 1).sum(axis=-1)
    deltas = (
        rounding.proved_sum(e + 1) * products.sum(axis=-1) + flushed,
        rounding.expected_sum(e + 1) * np.sqrt(np.square(rows.delta) + np.square(products).sum(axis=-1)) + flushed,
    )
    sums = float(rounding.proved_sum(terms)), float(rounding.expected_sum(terms))
    errors = sink_errors(rows, rounding.argument + U, rounding.frame, EXP, deltas, sums, TINY)
    size = np.abs(exact)
    allowed, expected = (each + _output_error(size + each, "float32") for each in (errors.proved, errors.expected))
    unconstrained = errors.nonfinite | ~(size + allowed <= LARGEST["float32"])
    allowed[unconstrained] = expected[unconstrained] = np.inf
    return Tolerance(allowed, np.fmin(expected, allowed))


def _runs(block: Block) -> Summands:
    """Return the block's contribution to `_Totals.runs`."""
    tau = abs(block.problem.tau)
    of_heads: Float64Array | None = None
    if block.bias is not None:
        b, h, g, r, c = block.ds.shape
        own = block.problem.bias or ()
        summed = tuple(axis for axis, extent in ((2, "q_len"), (3, "kv_len")) if extent not in own)
        sums = np.abs(block.ds.reshape(b, h * g, r, c).sum(axis=summed, keepdims=True))
        of_heads = sums.sum(axis=0 if "heads" in own else (0, 1), keepdims=True)[0]
    return Summands(
        None if block.rows is None else tau * np.abs(block.dz @ block.k),
        None if block.keys is None else tau * np.abs(block.dz.mT @ block.q).sum(axis=2),
        None if block.keys is None else np.abs(block.dropped_p.mT @ block.do).sum(axis=2),
        of_heads,
    )


def _products_and_bounds(block: Block, seen: npt.NDArray[np.bool_]) -> tuple[Summands, Summands]:
    """Return the block's contributions to `_Totals.products` and `_Totals.bounds`."""
    tau = np.square(block.problem.tau)
    P, dS, dZ = np.square(block.dropped_p), np.square(block.ds), np.square(block.dz)
    dQ: tuple[Float64Array | None, Float64Array | None] = (None, None)
    dK, dV, dbias = dQ, dQ, dQ
    if block.rows is not None:
        squares = tau * (dZ @ np.square(block.k))
        dQ = squares, np.sqrt(seen.sum(axis=-1, dtype=np.float64)[..., None] * squares)
    if block.keys is not None:
        rows_seeing = seen.sum(axis=-2, dtype=np.float64)[..., None]  # of each head
        dK, dV = (
            (squares.sum(axis=2), np.sqrt(rows_seeing * squares).sum(axis=2))
            for squares in ((tau * dZ).mT @ np.square(block.q), P.mT @ np.square(block.do))
        )
    if block.bias is not None:
        squares = block.over_batch(dS)
        dbias = squares, np.sqrt(block.over_batch(seen.astype(np.float64)) * squares)
    return Summands(dQ[0], dK[0], dV[0], dbias[0]), Summands(dQ[1], dK[1], dV[1], dbias[1])


def _counts(block: Block, pairs: npt.NDArray[np.bool_]) -> Summands:
    """Return the number of pairs of each row, for dQ, of each key, for dK and dV, and of each element of dbias."""
    of_rows = None if block.rows is None else pairs.sum(axis=-1, dtype=np.float64)[..., None]
    of_keys = None if block.keys is None else pairs.sum(axis=(2, 3), dtype=np.float64)[..., None]
    of_bias = None if block.bias is None else block.over_batch(pairs.astype(np.float64))
    return Summands(of_rows, of_keys, of_keys, of_bias)


def _proved(block: Block, rounding: Roundings, scored: ScoreErrorsOfBlock) -> _Pairs:
    """Return the errors of equation (1), including the rounding of factors."""
    p, dp_minus_delta = block.p, np.abs(block.dp - block.delta)
    e, seen = block.v.shape[-1], block.visible
    exponent = scored.proved + rounding.argument * _arguments(block) + EXP
    if rounding.stored:
        exponent += SLACK * rounding.stored * scored.largest + rounding.stored_step
    exponent += rounding.frame * (np.abs(block.s) + np.abs(block.lse))
    P = np.where(seen, p * np.expm1(SLACK * exponent) + TINY, 0.0)
    products = rounding.proved_sum(e + 1) * (np.abs(block.do) @ np.abs(block.v).mT) + _flushed(block.do, block.v)
    if rounding.stored:
        products += np.maximum(rounding.stored * (np.abs(block.products) + products), rounding.stored_step)
    if block.problem.dropout:
        products = block.kept * (products + DROPOUT_ERROR * (np.abs(block.products) + products))
    delta = rounding.proved_sum(e + 1) * (np.abs(block.do) * np.abs(block.o)).sum(axis=-1, keepdims=True)
    delta += _flushed_of_row(block)
    differences = products + delta + 3 * U * (np.abs(block.dp) + np.abs(block.delta) + products + delta)
    dS = np.where(seen, P * dp_minus_delta + (p + P) * differences + _step_of_dS(TINY, block.problem.tau), 0.0)
    dZ = before_terms(block, scored, dS)
    if rounding.factor:
        step = _step_of_dS(rounding.factor_step, block.problem.tau)
        rounded = [np.maximum(rounding.factor * (np.abs(x) + e), step) for x, e in ((block.ds, dS), (block.dz, dZ))]
        dS, dZ = (each + np.where(seen, own, 0.0) for each, own in zip((dS, dZ), rounded))
        P += np.where(seen, np.maximum(rounding.factor * (p + P), rounding.factor_step), 0.0)
    if block.problem.dropout:
        P = block.kept * (P + DROPOUT_ERROR * (p + P))
    return _Pairs(P, dS, dZ)


def _step_of_dS(step: float, tau: float) -> float:
    """Return the absolute error of dS if dS, or tau dS, is stored with this step."""
    return step * max(1.0, 1 / abs(tau) if tau else 1.0)


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


def _arguments(block: Block) -> Float64Array:
    """Return |s - lse|, limited to arguments whose exponentials are not 0 in float32."""
    return np.minimum(np.abs(block.s - block.lse), LARGEST_ARGUMENT)


def _add_expected(totals: _Totals, block: Block, rounding: Roundings, scored: ScoreErrorsOfBlock) -> None:
    p, dp_minus_delta, tau = block.p, block.dp - block.delta, block.problem.tau
    e, seen, f = block.v.shape[-1], block.visible, 1.0 if block.derivative is None else block.derivative
    if scored.common is not None:
        alike_p = np.where(seen, p * np.expm1(scored.common), 0.0)
        alike = alike_p * np.abs(dp_minus_delta)
        dZ = alike if block.derivative is None else f * alike + np.abs(block.ds) * scored.derivative.common
        totals.common.add(block, products_of(block, dZ, block.kept * alike_p, alike, np.abs))
    # What is flushed to zero is not random: it makes all products smaller.
    flushed_p = np.where(np.broadcast_to(seen, p.shape), TINY, 0.0)
    flushed = flushed_p * np.abs(dp_minus_delta) + np.where(seen, _step_of_dS(TINY, tau), 0.0)
    totals.common.add(block, products_of(block, f * flushed, block.kept * flushed_p, flushed, np.abs))
    exponential = (rounding.argument + U) * _arguments(block) + EXP + rounding.frame * np.abs(block.s)
    exponent = np.square(scored.expected) + np.square(LAMBDA * exponential)
    exponent += np.square(LAMBDA * rounding.stored * scored.largest)
    P = np.where(seen, p * np.expm1(np.sqrt(exponent)) + TINY, 0.0)
    squares_of_v = np.square(block.do) @ np.square(block.v).mT
    products = rounding.expected_sum(e + 1) * np.sqrt(np.square(block.products) + squares_of_v)
    products = np.square(products) + np.square(LAMBDA * rounding.stored * block.products)
    products += np.square(_flushed(block.do, block.v))
    if block.problem.dropout:
        products = np.square(block.kept) * (products + np.square(DROPOUT_ERROR * block.products))
    rounded = 3 * U * LAMBDA * (np.abs(block.dp) + np.abs(block.delta))
    dS = np.square(P * dp_minus_delta) + np.square(p + P) * (products + np.square(rounded))
    dS += np.where(seen, np.square(_step_of_dS(TINY, tau)), 0.0)
    dZ = dS
    if block.derivative is not None:
        dZ = np.square(f) * dS + np.square(scored.derivative.expected * block.ds) + np.square(2 * U * LAMBDA * block.dz)
    if rounding.factor:
        dS, dZ = (_rounded_as_factor(squares, x, block, rounding) for squares, x in ((dS, block.ds), (dZ, block.dz)))
    weights = np.square(P)
    if rounding.factor:
        weights += np.where(seen, np.square(LAMBDA * np.maximum(rounding.factor * (p + P), rounding.factor_step)), 0.0)
    if block.problem.dropout:
        weights = np.square(block.kept) * (weights + np.square(DROPOUT_ERROR * (p + P)))

    of_row = rounding.frame * np.abs(block.lse)
    magnitudes = np.square(block.do * block.o).sum(axis=-1, keepdims=True)
    # sum_j P_ij dP_ij = delta_i: if dP are nearly equal along a row, all are rounded alike.
    delta = rounding.expected_sum(e + 1) * np.sqrt(np.square(block.delta) + magnitudes) + rounding.stored * np.abs(
        block.delta
    )
    delta += _flushed_of_row(block)
    if block.rows is not None:
        totals.squares.add(block, Summands(dQ=np.square(tau) * (dZ @ np.square(block.k))))
        alike = of_row * np.abs(block.dz @ block.k) + delta * np.abs((f * p) @ block.k)
        totals.common.add(block, Summands(dQ=abs(tau) * alike))
    if block.keys is not None:
        of_rows = np.square(of_row * np.abs(block.dz) + delta * f * (p + P))
        weights = weights + np.square(of_row * block.dropped_p)
        dK = np.square(tau) * over_group(dZ + of_rows, np.square(block.q))
        totals.squares.add(block, Summands(dK=dK, dV=over_group(weights, np.square(block.do))))
    if block.bias is not None:
        of_rows = of_row * np.abs(block.ds) + delta * (p + P)
        if "kv_len" not in (block.problem.bias or ()):
            # Summed over keys first, then in squares over rows.
            over_keys = of_row * np.abs(block.ds.sum(axis=-1, keepdims=True)) + delta * p.sum(axis=-1, keepdims=True)
            of_rows = np.where(np.arange(p.shape[-1]) == 0, over_keys, 0.0)
        totals.squares.add(block, Summands(dbias=block.over_batch(dS + np.square(of_rows))))


def _rounded_as_factor(squares: Float64Array, x: Float64Array, block: Block, rounding: Roundings) -> Float64Array:
    """Return the squares of the errors of dS or dZ, `x`, after it is rounded to 16 bits."""
    step, largest = _step_of_dS(rounding.factor_step, block.problem.tau), np.abs(x) + np.sqrt(squares)
    rounded = np.square(LAMBDA * np.maximum(rounding.factor * largest, step))
    return squares + np.where(block.visible, rounded, 0.0)


def _may_overflow(
    block: Block, sizes: _Pairs, scored: ScoreErrorsOfBlock, problem: BackwardProblem
) -> npt.NDArray[np.bool_]:
    """Return where intermediate results may overflow the dtype in which they are factors or stored."""
    largest = LARGEST[problem.dtype] / SLACK
    over: npt.NDArray[np.bool_] = ~(np.maximum(sizes.dS, sizes.dZ) * max(1.0, abs(problem.tau)) <= largest)
    over |= (
        ~(np.maximum(np.abs(block.dp), np.abs(block.products)) <= largest)
        | ~(scored.largest <= largest)
        | ~(sizes.P <= largest)
    )
    return over
