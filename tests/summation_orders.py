"""Summation orders that kernels have, written as nested tuples, and what sums in such an order answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness.model.arithmetic.accumulation_order import Pair, Triple
from harness.model.arithmetic.summation_tree import SummationTree


def tree_of(nested: Any) -> SummationTree:
    """`((0, 1), 2)` -> its tree."""
    if isinstance(nested, int):
        return SummationTree(1, ())
    children: list[tuple[int, ...]] = []
    numbers = leaves(nested)
    assert sorted(numbers) == list(range(len(numbers)))

    def add(part: Any) -> int:
        if isinstance(part, int):
            return part
        children.append(tuple([add(each) for each in part]))
        return len(numbers) + len(children) - 1

    root = add(nested)
    return SummationTree.of(len(numbers), children, root)


def leaves(nested: Any) -> list[int]:
    return [nested] if isinstance(nested, int) else [leaf for part in nested for leaf in leaves(part)]


def running(parts: Sequence[Any]) -> Any:
    """One after the other."""
    total = parts[0]
    for part in parts[1:]:
        total = (total, part)
    return total


def butterfly(lanes: Sequence[Any], distances: Sequence[int]) -> Any:
    """`__shfl_xor_sync` at these distances, as lane 0 has it."""
    values = list(lanes)
    for distance in distances:
        values = [(values[lane], values[lane ^ distance]) for lane in range(len(values))]
    return values[0]


def strided(first: int, stride: int, count: int) -> Any:
    return running([first + stride * step for step in range(count)])


@st.composite
def orders(draw: st.DrawFn, least: int = 1, most: int = 40, at_once: int = 2) -> Any:
    """Any order of `least` to `most` terms: up to `at_once` parts join, until one is left."""
    parts: list[Any] = list(range(draw(st.integers(least, most))))
    random = draw(st.randoms(use_true_random=False))
    # How often the part that grew last grows on: from bushes to chains.
    going_on = draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    random.shuffle(parts)
    while len(parts) > 1:
        grown = parts.pop() if random.random() < going_on else parts.pop(random.randrange(len(parts)))
        joining = random.randint(1, min(at_once - 1, len(parts)))
        parts.append((grown, *(parts.pop(random.randrange(len(parts))) for _ in range(joining))))
    return parts[0]


HUGE = np.float32(2.0**60)
SWALLOWED = np.float32(0.29 * 2.0**-23)


def answers_counts(add_up: Callable[[np.ndarray], np.ndarray], terms: int) -> Callable[[list[Pair]], list[int]]:
    """What a sum answers `order_from_counts`; `add_up` takes (terms, questions)."""

    def ask(pairs: list[Pair]) -> list[int]:
        columns = np.ones((terms, len(pairs)), np.float32)
        for column, (plus, minus) in enumerate(pairs):
            columns[plus, column], columns[minus, column] = HUGE, -HUGE
        return [int(count) for count in add_up(columns)]

    return ask


def answers_joins(add_up: Callable[[np.ndarray], np.ndarray], terms: int) -> Callable[[list[Triple]], list[bool]]:
    """What a sum answers `order_from_joins`."""

    def ask(triples: list[Triple]) -> list[bool]:
        columns = np.zeros((terms, len(triples)), np.float32)
        for column, (i, j, k) in enumerate(triples):
            columns[[j, k], column] = SWALLOWED
            columns[i, column] = 1
        return [bool(total != 1) for total in add_up(columns)]

    return ask


def truncating_total(tree: SummationTree, terms: np.ndarray) -> np.ndarray:
    """As tensor cores add several at once: what lies below 2^-24 of the largest is cut off, then all are added."""

    def add(members: list[np.ndarray]) -> np.ndarray:
        together = np.asarray(members, np.float64)
        unit = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(together).max(axis=0), 2.0**-100))) - 24)
        return (np.trunc(together / unit) * unit).sum(axis=0)

    return tree.fold(lambda term: terms[term], add)[-1]
