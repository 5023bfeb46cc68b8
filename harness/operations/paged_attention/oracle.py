"""Computes the answer: gathers the keys of each sequence from the pool and calls attention's oracle.

Gathering is all that is added to attention's own oracle and budget. It follows the table entry by entry, as the problem
is written down, and shares nothing with how kernels walk over pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Operation, Part, Tolerance, operation_named
from harness.operations.attention.masks import NO_MASK, parse_mask
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.inputs import sequences_of_length
from harness.operations.paged_attention.sequences import PagedSequences

Float64Array = npt.NDArray[np.float64]
Arrays = Mapping[str, np.ndarray]


def attention() -> Operation:
    """Return the operation `attention`, whose oracle and budget apply to each sequence."""
    return operation_named("attention")


def gathered(problem: PagedSequences, inputs: Arrays, sequences: Sequence[int]) -> dict[str, np.ndarray]:
    """Return Q, K and V of sequences of equal length as inputs of attention, gathered through the page table."""
    length = problem.lengths[sequences[0]]
    places = np.arange(length)
    pages = inputs["table"][list(sequences)][:, places // problem.page_size]
    rows = np.broadcast_to(places % problem.page_size, pages.shape)
    # Advanced indexing with a slice in between gives (sequences, keys, kv_heads, head_dim).
    K, V = (np.ascontiguousarray(inputs[name][pages, :, rows].swapaxes(1, 2)) for name in "KV")
    return {"Q": inputs["Q"][list(sequences)], "K": K, "V": V}


def posed(problem: PagedSequences, sequences: Sequence[int]) -> Problem:
    """Return the attention problem of these sequences of equal length."""
    mask = parse_mask("causal") if problem.q_len > 1 else NO_MASK
    return sequences_of_length(problem, problem.lengths[sequences[0]], len(sequences), mask)


def sequences_of_part(problem: PagedSequences, part: Part) -> tuple[range, Part]:
    """Return the sequences of a part, and the corresponding part of each one's attention problem."""
    where = (*part.where, *(slice(None),) * (3 - len(part.where)))
    return range(problem.sequences)[where[0]], Part((slice(None), *where[1:]), part.name)


def by_length(problem: PagedSequences, sequences: Sequence[int]) -> Iterator[list[int]]:
    """Yield groups of sequences of equal length."""
    groups: dict[int, list[int]] = {}
    for sequence in sequences:
        groups.setdefault(problem.lengths[sequence], []).append(sequence)
    yield from groups.values()


def answer(problem: PagedSequences, inputs: Arrays, part: Part = WHOLE) -> dict[str, Float64Array]:
    """Compute O and lse in float64. A sequence without keys has O = 0 and lse = -infinity."""
    sequences, of_each = sequences_of_part(problem, part)
    O, lse = _filled(problem, part, 0.0), _filled(problem, part, -np.inf)[..., 0]
    for group in by_length(problem, sequences):
        if problem.lengths[group[0]] > 0:
            found = attention().answer(posed(problem, group), gathered(problem, inputs, group), of_each)
            at = [sequence - sequences.start for sequence in group]
            O[at], lse[at] = found["O"], found["lse"]
    return {"O": O, "lse": lse}


def tolerance(
    problem: PagedSequences, inputs: Arrays, answer: Mapping[str, Float64Array], numerics: Numerics, part: Part = WHOLE
) -> dict[str, Tolerance]:
    """Attention's budget for each sequence; `answer` is the oracle's. Without keys, the answer has to be exact.

    That budget holds for sums in any order and for weights that shrink whenever a maximum rises, or parts of the keys
    are put together that have a maximum each: so it is that of splits, too, however many there are.
    """
    sequences, of_each = sequences_of_part(problem, part)
    shapes = {"O": _filled(problem, part, 0.0), "lse": _filled(problem, part, 0.0)[..., 0]}
    found = {name: Tolerance(zeros.copy(), zeros.copy()) for name, zeros in shapes.items()}
    for group in by_length(problem, sequences):
        if problem.lengths[group[0]] > 0:
            at = [sequence - sequences.start for sequence in group]
            own: dict[str, Any] = {name: answer[name][at] for name in found}
            budget = attention().tolerance(
                posed(problem, group), gathered(problem, inputs, group), own, numerics, of_each
            )
            for name, each in budget.items():
                found[name].allowed[at], found[name].expected[at] = each.allowed, each.expected
    return found


def needed_read_bytes(problem: PagedSequences, inputs: Arrays) -> int:
    """What attention needs of each sequence that shares no page with one that was counted; of others, nothing.

    The table and the lengths are left out: a kernel might be told them otherwise.
    """
    counted: set[int] = set()
    needed = 0
    for sequence, pages in enumerate(problem.sequence_pages):
        own = set(inputs["table"][sequence, :pages].tolist())
        if own and not own & counted:
            counted |= own
            needed += attention().needed_read_bytes(posed(problem, [sequence]), gathered(problem, inputs, [sequence]))
    return needed


def _filled(problem: PagedSequences, part: Part, value: float) -> Float64Array:
    """Shaped as O of the part."""
    return np.full(problem.o_shape, value)[part.where]
