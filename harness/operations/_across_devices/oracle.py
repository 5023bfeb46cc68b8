"""Computes the answer, which is attention's, and the tolerance of putting it together from the chunks of all devices.

**Notation.** Chunk t of the keys alone gives O_t and lse_t; w_t = exp(lse_t - lse) are their weights, and

    O = sum w_t O_t                                                                                     (1)

A device computes O_t and lse_t with any attention kernel, whose error B_t and d_t are attention's budget for that chunk
(including the rounding of O_t to the problem's dtype), and adds one chunk after the other to a sum in float32.

**Weights.** With lse_s the logarithm stored after s chunks, chunk t has the weight exp(lse_t - lse_t') in the step that
adds it, and that product is multiplied by exp(lse_s-1 - lse_s) in each later step. Exponents telescope, so the stored
logarithms cancel up to their roundings: u |lse_s| + c u each, with |lse_s| <= max(|lse_t|, |lse|), as they never fall.
Exponentials err by u times their arguments, which add up to lse - lse_t at most, and c u. With k = T - 1 steps that
put two chunks together, the logarithm of a weight is wrong by at most

    x_t = d_t + k u (max(|lse_t|, |lse|) + c) + u (lse - lse_t) + k c u                                 (2)

**Sum.** Weights add up to 1 but for k c u, so an error that they share cancels. As in attention's budget,

    |O^ - O| <= (sum w_t (e^x_t - 1) |O_t - O|) exp(sum w_t x_t) + sum w_t e^x_t B_t + k c u (|O| + sum w_t |O_t|)   (3)

plus underflow, and the rounding of O to its dtype. lse is wrong by log(1 + sum w_t (e^x_t - 1)) and k roundings. A row
that sees keys of one chunk alone has its budget.

The expected error is (3) with the expected errors of the chunks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.model.arithmetic.rounding import SMALLEST_STEP, UNIT_ROUNDOFF, U
from harness.model.array_types import Arrays, Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Operation, Part, Tolerance, operation_named
from harness.operations._across_devices.order import CausalPart
from harness.operations._across_devices.problem import DividedProblem
from harness.operations.attention.masks import NO_MASK, Integers, Visibility
from harness.support.override import override

C = 16
"""c of (2) and (3): unit roundoffs of an exponential or a logarithm, of a division, and of products and sums."""
FLUSHED = 4
"""Numbers that a step may flush to 0: O of the sum and of the chunk as they are read, a product and their sum; or a
weight."""
LARGEST_ARGUMENT = 104.0
"""exp(-104) is below the smallest float32: smaller weights are 0."""


def attention() -> Operation:
    """Return the operation `attention`, whose oracle and budget apply to the whole sequence and to each chunk."""
    return operation_named("attention")


def answer(problem: DividedProblem, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
    """Compute O and lse in float64: attention of the whole sequence, which knows no devices."""
    return attention().answer(problem.whole, inputs, part)


@dataclass(frozen=True)
class KeysAt(CausalPart):
    """A causal mask over every `step`-th key of a sequence: row i sees key j if first + step * j <= i."""

    first: int
    step: int

    idea: ClassVar[str] = "row i sees key j if first + step * j <= i"

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        return self.first + self.step * keys <= rows

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        rows = np.asarray(rows, dtype=np.int64)
        return np.zeros_like(rows), np.clip((rows - self.first) // self.step + 1, 0, kv_len)

    @property
    @override
    def text(self) -> str:
        return f"causal at {self.first}+{self.step}j"


@dataclass(frozen=True)
class ChunkAnswer:
    """What the keys of one chunk alone give."""

    O: Float64Array
    lse: Float64Array
    """-infinity for rows that see none of its keys."""
    tolerance: Mapping[str, Tolerance]


def chunk_answers(problem: DividedProblem, inputs: Arrays, numerics: Numerics, part: Part = WHOLE) -> list[ChunkAnswer]:
    """Return attention of all rows of `part` with the keys of each chunk."""
    found = []
    for chunk in problem.all_chunks:
        rows = chunk.rows
        mask = KeysAt(rows.start - problem.diagonal, rows.step) if problem.causal else NO_MASK
        of_chunk = dataclasses.replace(problem.whole, kv_len=len(rows), mask=mask)
        given = {"Q": inputs["Q"], **{name: chunk.rows_of(inputs[name]) for name in "KV"}}
        own = attention().answer(of_chunk, given, part)
        tolerance = attention().tolerance(of_chunk, given, own, numerics, part)
        found.append(ChunkAnswer(own["O"], own["lse"], tolerance))
    return found


def tolerance(
    problem: DividedProblem, inputs: Arrays, answer: Mapping[str, Float64Array], numerics: Numerics, part: Part = WHOLE
) -> Mapping[str, Tolerance]:
    """Return the budgets of O and lse, as the module derives them."""
    if len(problem.all_chunks) == 1:
        return attention().tolerance(problem.whole, inputs, answer, numerics, part)
    chunks = chunk_answers(problem, inputs, numerics, part)
    with np.errstate(all="ignore"):
        allowed = _budget(problem, answer, chunks, lambda tolerance: tolerance.allowed)
        expected = _budget(problem, answer, chunks, lambda tolerance: tolerance.expected)
    return {name: Tolerance(allowed[name], np.fmin(expected[name], allowed[name])) for name in allowed}


def _budget(
    problem: DividedProblem,
    answer: Mapping[str, Float64Array],
    chunks: list[ChunkAnswer],
    of: Callable[[Tolerance], Float64Array],
) -> dict[str, Float64Array]:
    """Return (3) for the errors of the chunks that `of` selects."""
    O, lse = answer["O"], answer["lse"]
    steps = np.maximum(sum((chunk.lse != -np.inf).astype(np.float64) for chunk in chunks) - 1, 0)
    moved, from_chunks, magnitude, largest, of_only = (np.zeros_like(O) for _ in range(5))
    mean_x, log_error, only = (np.zeros_like(lse) for _ in range(3))
    any_O, only_here, any_of_lse = (np.zeros(shape, np.bool_) for shape in (O.shape, O.shape, lse.shape))
    for chunk in chunks:
        seen = chunk.lse != -np.inf
        distance = np.where(seen, np.maximum(lse - chunk.lse, 0), np.inf)
        weight = np.exp(-distance)
        error_of_lse = of(chunk.tolerance["lse"])
        reach = np.where(seen, np.maximum(np.abs(chunk.lse), np.abs(lse)), 0)
        x = np.where(seen, error_of_lse, 0)
        x += np.where(steps > 0, steps * U * (reach + 2 * C) + U * np.minimum(distance, LARGEST_ARGUMENT), 0)
        grown = weight * np.exp(x)
        moved += (weight * np.expm1(x))[..., None] * np.abs(chunk.O - O)
        from_chunks += np.where(seen[..., None], grown[..., None] * of(chunk.tolerance["O"]), 0)
        magnitude += weight[..., None] * np.abs(chunk.O)
        largest = np.maximum(largest, np.abs(chunk.O))
        mean_x += weight * x
        log_error += weight * np.expm1(x)
        only += np.where(seen, error_of_lse, 0)
        of_only += np.where(seen[..., None], of(chunk.tolerance["O"]), 0)
        # Where a correct kernel of a chunk may return anything, so may the whole.
        any_lse = np.isposinf(error_of_lse)
        any_O |= np.isposinf(of(chunk.tolerance["O"])) | any_lse[..., None]
        any_of_lse |= any_lse
        # Where a chunk's answer is not finite although the whole is: its weight is 0 in the oracle, not in float32.
        only_here |= seen[..., None] & ~(np.isfinite(chunk.O) & np.isfinite(chunk.lse)[..., None])
    merges, merged = steps[..., None], (steps > 0)[..., None]
    total = moved * np.exp(mean_x)[..., None] + from_chunks
    total += merges * (C * U * (np.abs(O) + magnitude) + FLUSHED * SMALLEST_STEP["float32"] * (1 + largest))
    if problem.dtype != "float32":
        rounded = np.maximum(UNIT_ROUNDOFF[problem.dtype] * (np.abs(O) + total), SMALLEST_STEP[problem.dtype])
        total += rounded
    total = np.where(merged, total, of_only)
    of_lse = np.where(steps > 0, np.log1p(log_error) + steps * U * (np.abs(lse) + C), only)
    total[~np.isfinite(O)], of_lse[~np.isfinite(lse)] = np.nan, np.nan
    total[any_O | (only_here & np.isfinite(O))] = np.inf
    of_lse[any_of_lse] = np.inf
    return {"O": total, "lse": of_lse}
