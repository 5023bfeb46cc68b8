"""Answers checked at a few places, where the whole of them would keep the oracle busy for minutes.

A run of rows of one head is a problem of its own, with the same answer: those rows of Q, the head's K and V up to the
last key that they may see. So the oracle and the budget are asked exactly what they are asked for a small problem.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.execution.accuracy import Accuracy, measure_accuracy
from harness.execution.question import Question
from harness.model.numerics import Numerics
from harness.operations.attention.problem import Problem

WHOLE_FLOPS = 4e9
"""Up to here the oracle answers everything: about a second."""
ROWS_PER_SPOT = 32
MOST_SPOTS = 12
ANYHOW = Numerics()
"""Of kernels that say nothing about where they round, somebody else's above all."""


@dataclass(frozen=True)
class Spot:
    """Some rows of one head, or the whole problem."""

    where: tuple[slice, slice, slice]
    """Batch, head, rows."""
    question: Question

    def accuracy(self, outputs: Mapping[str, np.ndarray], numerics: Numerics) -> Accuracy:
        """Hold this part of the outputs against the oracle, rounded where `numerics` says."""
        here = {name: array[self.where] for name, array in outputs.items()}
        return measure_accuracy(here, self.question.reference, self.question.budget(numerics))

    @property
    def name(self) -> str:
        """Where it lies."""
        batch, head, rows = self.where
        if batch.start is None:
            return "everywhere"
        return f"batch {batch.start}, head {head.start}, rows {rows.start} to {rows.stop - 1}"


def choose_spots(problem: Problem, inputs: Mapping[str, np.ndarray]) -> tuple[Spot, ...]:
    """The whole of a small problem; of a large one the first and the last rows and some between, over the heads."""
    p = problem
    if 4.0 * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim <= WHOLE_FLOPS:
        everywhere = slice(None)
        return (Spot((everywhere, everywhere, everywhere), Question.pose(problem, inputs)),)
    # Rows that see no key at all have nothing to be asked.
    first, end = p.span(np.arange(p.q_len))
    first_row = int(np.argmax(end > first))
    heads = p.batch * p.heads
    count = min(MOST_SPOTS, max(2, heads))
    spots = []
    for number in range(count):
        head = number * (heads - 1) // (count - 1)
        start = first_row + round(number * (p.q_len - first_row) / (count - 1) / ROWS_PER_SPOT) * ROWS_PER_SPOT
        start = max(0, min(start, p.q_len - ROWS_PER_SPOT))
        spots.append(
            _spot(problem, inputs, head // p.heads, head % p.heads, start, min(p.q_len, start + ROWS_PER_SPOT))
        )
    return tuple(spots)


def _spot(
    problem: Problem, inputs: Mapping[str, np.ndarray], batch: int, head: int, first_row: int, end_row: int
) -> Spot:
    p = problem
    kv_len = max(1, p.kv_len - p.q_len + end_row) if p.causal else p.kv_len
    part = dataclasses.replace(p, batch=1, heads=1, kv_heads=1, q_len=end_row - first_row, kv_len=kv_len, scale=p.tau)
    kv_head = head // p.group
    values = {
        "Q": inputs["Q"][batch : batch + 1, head : head + 1, first_row:end_row],
        "K": inputs["K"][batch : batch + 1, kv_head : kv_head + 1, :kv_len],
        "V": inputs["V"][batch : batch + 1, kv_head : kv_head + 1, :kv_len],
    }
    where = (slice(batch, batch + 1), slice(head, head + 1), slice(first_row, end_row))
    return Spot(where, Question.pose(part, values))


@dataclass(frozen=True)
class SpotCheck:
    """What all spots together came to."""

    reason: str | None
    """What is wrong first, and where; None where nothing is."""
    error_over_budget: float
    """The largest over the spots, of O."""


def check_spots(spots: Sequence[Spot], outputs: Mapping[str, np.ndarray], numerics: Numerics = ANYHOW) -> SpotCheck:
    """Hold outputs against the oracle at every spot, rounded where `numerics` says."""
    worst, reason = 0.0, None
    for spot in spots:
        accuracy = spot.accuracy(outputs, numerics)
        ratio = accuracy.error_over_budget
        worst = ratio if math.isnan(ratio) or not worst > ratio else worst
        if accuracy.reason is not None and reason is None:
            reason = accuracy.reason if spot.name == "everywhere" else f"{spot.name}: {accuracy.reason}"
    return SpotCheck(reason, worst)
