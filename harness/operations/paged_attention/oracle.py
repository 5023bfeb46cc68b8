"""Computes the answer: gathers the keys of each sequence from the pool and calls attention's oracle.

Gathering is all that is added to attention's own oracle and budget. It follows the table entry by entry, as the problem
is written down, and shares nothing with how kernels walk over pages. Evicted pages are left out: masks and ALiBi count
from the last key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.model.numerics import Numerics
from harness.model.operation import WHOLE, Operation, Part, Tolerance, operation_named
from harness.operations.attention.masks import parse_mask
from harness.operations.attention.problem import Problem
from harness.operations.paged_attention.eight_bits import SCALES, multiplied
from harness.operations.paged_attention.inputs import place_of_rows, rules_of, sequences_of_length
from harness.operations.paged_attention.sequences import PagedSequences

Float64Array = npt.NDArray[np.float64]
Arrays = Mapping[str, np.ndarray]


def attention() -> Operation:
    """Return the operation `attention`, whose oracle and budget apply to each sequence."""
    return operation_named("attention")


def gathered(problem: PagedSequences, inputs: Arrays, sequences: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the inputs of `posed`: Q, K and V gathered through the page table, and those of score terms."""
    length = problem.lengths[sequences[0]]
    own = {"Q": np.stack([inputs["Q"][place_of_rows(problem, sequence)] for sequence in sequences])}
    own |= {name: inputs[name] for term in problem.terms for name in term.input_names}
    if length == 0:
        shape = (len(sequences), problem.kv_heads, 1)
        Q = np.concatenate((own["Q"], np.zeros_like(own["Q"][:, :, :1])), axis=2)
        return {**own, "Q": Q, **{name: np.zeros((*shape, inputs[name].shape[-1]), Q.dtype) for name in "KV"}}
    places = np.arange(problem.evicted_pages[sequences[0]] * problem.page_size, length)
    pages = inputs["table"][list(sequences)][:, places // problem.page_size]
    rows = np.broadcast_to(places % problem.page_size, pages.shape)
    # Advanced indexing with a slice in between gives (sequences, keys, kv_heads, head_dim).
    found = {name: np.ascontiguousarray(inputs[name][pages, :, rows].swapaxes(1, 2)) for name in "KV"}
    if problem.kv_dtype is not None:
        found = {name: multiplied(stored, inputs[SCALES[name]]) for name, stored in found.items()}
    return {**own, **found}


def posed(problem: PagedSequences, sequences: Sequence[int]) -> Problem:
    """Return the attention problem of these sequences, which have equally many keys and rows.

    Without keys, it has one key and one row more, the last, which alone sees it.
    """
    length, rows, rules = problem.lengths[sequences[0]], problem.rows[sequences[0]], rules_of(problem)
    if length == 0:
        return sequences_of_length(problem, 1, len(sequences), rows + 1, **rules | {"mask": parse_mask("causal")})
    keys = length - problem.evicted_pages[sequences[0]] * problem.page_size
    return sequences_of_length(problem, keys, len(sequences), rows, **rules)


@dataclass(frozen=True)
class Group:
    """Sequences of a part that have equally many keys, rows, and rows in the part."""

    sequences: tuple[int, ...]
    part: Part
    """The part of their attention problem."""
    places: tuple[tuple[Any, ...], ...]
    """Index of each sequence in arrays of the part."""

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return what an array of the part has of each sequence."""
        return np.stack([array[place] for place in self.places])

    def write(self, array: np.ndarray, of_each: np.ndarray) -> None:
        """Store what each sequence has to an array of the part."""
        for place, own in zip(self.places, of_each):
            array[place] = own


def groups_of_part(problem: PagedSequences, part: Part = WHOLE) -> Iterator[Group]:
    """Yield the sequences that have rows in the part, in groups."""
    where = (*part.where, *(slice(None),) * (3 - len(part.where)))
    batch, _, rows = problem.lse_shape
    in_batch, in_rows = range(batch)[where[0]], range(rows)[where[2]]
    groups: dict[tuple[int, ...], list[tuple[int, tuple[Any, ...]]]] = {}
    starts = problem.row_starts
    for sequence in in_batch if problem.q_lengths is None else range(problem.sequences):
        begin, end = in_rows.start, in_rows.stop
        place: tuple[Any, ...] = (sequence - in_batch.start,)
        if problem.q_lengths is not None:
            first = starts[sequence]
            begin, end = max(begin, first) - first, min(end, starts[sequence + 1]) - first
            if end <= begin:
                continue
            place = (0, slice(None), slice(first + begin - in_rows.start, first + end - in_rows.start))
        alike = problem.lengths[sequence], problem.rows[sequence], begin, end
        groups.setdefault(alike, []).append((sequence, place))
    for (_, _, begin, end), members in groups.items():
        sequences, places = zip(*members)
        yield Group(sequences, Part((slice(None), where[1], slice(begin, end)), part.name), places)


def answer(problem: PagedSequences, inputs: Arrays, part: Part = WHOLE) -> dict[str, Float64Array]:
    """Compute O and lse in float64. A sequence without keys has O = 0, and lse = -infinity or the sink."""
    outputs = {"O": _zeros(problem, part), "lse": _zeros(problem, part)[..., 0]}
    for group in groups_of_part(problem, part):
        own = gathered(problem, inputs, group.sequences)
        found = attention().answer(posed(problem, group.sequences), own, group.part)
        for name, array in outputs.items():
            group.write(array, found[name])
    return outputs


def tolerance(
    problem: PagedSequences, inputs: Arrays, answer: Mapping[str, Float64Array], numerics: Numerics, part: Part = WHOLE
) -> dict[str, Tolerance]:
    """Attention's budget for each sequence; `answer` is the oracle's. Without keys, O has to be exact.

    That budget holds for sums in any order and for weights that shrink whenever a maximum rises, or parts of the keys
    are put together that have a maximum each: so it is that of splits, too, however many there are. A scale of K is a
    factor more on products q.k, and one of V a factor more on O. Each is a rounding more, in place of those of products
    of two elements, which are exact: elements of 16 and of 8 bits have at most 15 bits together.
    """
    if problem.kv_dtype is not None:
        # No element is exact: its product with the scale is rounded, whatever the order of sums.
        numerics = dataclasses.replace(numerics, sums="truncated")
    shapes = {"O": _zeros(problem, part), "lse": _zeros(problem, part)[..., 0]}
    found = {name: Tolerance(zeros.copy(), zeros.copy()) for name, zeros in shapes.items()}
    for group in groups_of_part(problem, part):
        right: dict[str, Any] = {name: group.of(answer[name]) for name in found}
        own = gathered(problem, inputs, group.sequences)
        budget = attention().tolerance(posed(problem, group.sequences), own, right, numerics, group.part)
        for name, each in budget.items():
            group.write(found[name].allowed, each.allowed)
            group.write(found[name].expected, each.expected)
    return found


def needed_read_bytes(problem: PagedSequences, inputs: Arrays) -> int:
    """What attention needs of each sequence that shares no page with one that was counted; of others, nothing.

    The table and the lengths are left out: a kernel might be told them otherwise. 0, unknown, for K and V in 8 bits:
    attention's bound counts on what the largest element of 16 bits does to an answer.
    """
    if problem.kv_dtype is not None:
        return 0
    counted: set[int] = set()
    needed = 0
    for sequence, (evicted, pages) in enumerate(zip(problem.evicted_pages, problem.sequence_pages)):
        own = set(inputs["table"][sequence, evicted:pages].tolist()) if problem.rows[sequence] else set()
        if own and not own & counted:
            counted |= own
            needed += attention().needed_read_bytes(posed(problem, [sequence]), gathered(problem, inputs, [sequence]))
    return needed


def _zeros(problem: PagedSequences, part: Part) -> Float64Array:
    """Shaped as O of the part."""
    return np.zeros(problem.o_shape)[part.where]
