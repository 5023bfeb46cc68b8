"""Computes the gradients, which are those of the whole sequence, and the tolerance of summing them over devices.

Row i of Q has a part of the gradients of every key that it sees, and

    dQ_i = sum over keys,        dK_j, dV_j = sum over rows                                                  (1)

are sums in any order, as the budget of `attention-backward` has them: float32 sums over the keys of one block after the
other, and over the rows of one device after the other, are sums in some order. A term of dK_j is rounded once per term
at most, and by the scale once, wherever it is.

**Blocks in 16 bits.** Kernels store dK and dV of a block in the problem's dtype, before a float32 sum takes them. With
the parts dK^c of the rows of chunk c, of which a correct kernel is off by E^c, that adds at most

    sum over c of max(u_16 (|dK^c| + E^c), step_16)                                                          (2)

where rows of two chunks or more see the key; and so for dV. Equal parts are rounded alike, so the expected error is the
same sum, with the expected E^c. In float32 nothing is added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from harness.model.arithmetic.rounding import LARGEST, SMALLEST_STEP, UNIT_ROUNDOFF
from harness.model.array_types import Arrays, Float64Array
from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Operation, Part, Tolerance, operation_named
from harness.operations._across_devices.order import CausalPart
from harness.operations._across_devices.problem import ROW_AXIS
from harness.operations.attention.masks import NO_MASK, Integers, Visibility
from harness.operations.ring_attention_backward.problem import RingBackwardProblem
from harness.support.override import override

OF_KEYS = ("dK", "dV")
"""Outputs that are sums over rows, and so over devices."""
OF_ROWS = ("Q", "O", "lse", "dO")
"""Inputs with rows of Q."""
SLACK = 1.01
"""Covers the roundings of rounding errors."""


def backward() -> Operation:
    """Return the operation `attention-backward`, whose oracle and budget apply to the whole sequence and to parts."""
    return operation_named("attention-backward")


def answer(problem: RingBackwardProblem, inputs: Arrays, part: Part = WHOLE) -> Mapping[str, Float64Array]:
    """Compute dQ, dK and dV in float64: those of the whole sequence, which knows no devices."""
    return backward().answer(problem.whole, inputs, part)


@dataclass(frozen=True)
class RowsAt(CausalPart):
    """A causal mask over every `step`-th row of a sequence: row i sees key j if j <= first + step * i."""

    first: int
    step: int

    idea: ClassVar[str] = "row i sees key j if j <= first + step * i"

    @override
    def visible(self, rows: Integers, keys: Integers, q_len: int, kv_len: int) -> Visibility:
        return keys <= self.first + self.step * rows

    @override
    def span(self, rows: Integers, q_len: int, kv_len: int) -> tuple[Integers, Integers]:
        rows = np.asarray(rows, dtype=np.int64)
        return np.zeros_like(rows), np.clip(self.first + self.step * rows + 1, 0, kv_len)

    @property
    @override
    def text(self) -> str:
        return f"causal from {self.first}+{self.step}i"


@dataclass(frozen=True)
class ChunkGradients:
    """What the rows of one chunk add to the gradients of all keys."""

    gradients: Mapping[str, Float64Array]
    """dK and dV."""
    tolerance: Mapping[str, Tolerance]
    """Of dK and dV: 0 for keys that none of its rows sees."""


def chunk_gradients(
    problem: RingBackwardProblem, inputs: Arrays, numerics: Numerics, part: Part = WHOLE
) -> list[ChunkGradients]:
    """Return dK and dV of `part`, as the rows of each chunk alone give them."""
    found = []
    for chunk in problem.all_chunks:
        rows = chunk.rows
        mask = RowsAt(rows.start, rows.step) if problem.causal else NO_MASK
        of_chunk = dataclasses.replace(problem.whole, q_len=len(rows), mask=mask)
        given = {**inputs, **{name: chunk.rows_of(inputs[name]) for name in OF_ROWS}}
        first_row = (slice(0, 1),) * (ROW_AXIS + 1)  # of dQ, which is not needed
        own_part = part if part is WHOLE else Part(first_row, part.name, {name: part.of(name) for name in OF_KEYS})
        own = backward().answer(of_chunk, given, own_part)
        tolerance = backward().tolerance(of_chunk, given, own, numerics, own_part)
        found.append(ChunkGradients({name: own[name] for name in OF_KEYS}, tolerance))
    return found


def tolerance(
    problem: RingBackwardProblem,
    inputs: Arrays,
    answer: Mapping[str, Float64Array],
    numerics: Numerics,
    part: Part = WHOLE,
) -> Mapping[str, Tolerance]:
    """Return the budgets of dQ, dK and dV, as the module derives them."""
    whole = backward().tolerance(problem.whole, inputs, answer, numerics, part)
    if problem.dtype == "float32" or len(problem.all_chunks) == 1:
        return whole
    chunks = chunk_gradients(problem, inputs, numerics, part)
    found = dict(whole)
    for name in OF_KEYS:
        with np.errstate(invalid="ignore"):
            allowed = whole[name].allowed + _rounding_of_blocks(problem, chunks, name, lambda of: of.allowed)
            expected = whole[name].expected + _rounding_of_blocks(problem, chunks, name, lambda of: of.expected)
            unconstrained = ~(np.abs(answer[name]) + allowed <= LARGEST[problem.dtype])
        allowed[unconstrained] = expected[unconstrained] = np.inf
        found[name] = Tolerance(allowed, np.fmin(expected, allowed))
    return found


def _rounding_of_blocks(
    problem: RingBackwardProblem,
    chunks: list[ChunkGradients],
    name: str,
    of: Callable[[Tolerance], Float64Array],
) -> Float64Array:
    """Return (2) for the errors of the chunks that `of` selects."""
    u, step = UNIT_ROUNDOFF[problem.dtype], SMALLEST_STEP[problem.dtype]
    total, seen_by = np.zeros_like(chunks[0].gradients[name]), np.zeros(chunks[0].gradients[name].shape, np.int64)
    for chunk in chunks:
        seen = chunk.tolerance[name].allowed > 0
        size = np.abs(chunk.gradients[name]) + of(chunk.tolerance[name])
        total += np.where(seen, np.maximum(SLACK * u * size, step), 0.0)
        seen_by += seen
    return np.where(seen_by > 1, total, 0.0)
