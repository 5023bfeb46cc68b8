"""Represents the order of a sum as a tree. Leaves are the terms, and inner nodes are the rounded partial sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Value = TypeVar("Value")


@dataclass(frozen=True)
class SummationTree:
    """The order of one sum. Equal trees give equal bits for equal terms; a + b and b + a are the same.

    Terms are the nodes 0 .. terms - 1. `sums[s]` are the operands of node terms + s: usually two nodes, and more if the
    hardware adds several at once, or so exactly that no order is visible. Sums may only refer to earlier ones, and the
    last sum is the result. `of` creates trees in a canonical form, in which equal orders compare equal.
    """

    terms: int
    """Number of terms, at least 1."""
    sums: tuple[tuple[int, ...], ...]
    """Operands of each sum. Empty for a single term."""

    @classmethod
    def of(cls, terms: int, children: Sequence[Sequence[int]], root: int | None = None) -> SummationTree:
        """Return the canonical tree below `root` (None: the last node).

        `children[s]` are the operands of node terms + s. Sums that the root does not depend on are omitted.
        """
        if root is None:
            root = terms + len(children) - 1
        reached, open_nodes = [], [root] if root >= terms else []
        while open_nodes:
            node = open_nodes.pop()
            reached.append(node)
            open_nodes += [child for child in children[node - terms] if child >= terms]
        size, first = dict.fromkeys(range(terms), 1), dict(enumerate(range(terms)))
        for node in reversed(reached):  # a sum follows its operands, since the root was reached first
            size[node] = sum(size[child] for child in children[node - terms])
            first[node] = min(first[child] for child in children[node - terms])
        assert size[root] == terms
        # Sums with the same first term contain one another, so they differ in size.
        order = sorted(reached, key=lambda node: (size[node], first[node]))
        number = {node: terms + s for s, node in enumerate(order)} | {term: term for term in range(terms)}
        return cls(
            terms,
            tuple(
                tuple(number[child] for child in sorted(children[node - terms], key=first.__getitem__))
                for node in order
            ),
        )

    def fold(self, leaf: Callable[[int], Value], add: Callable[[list[Value]], Value]) -> list[Value]:
        """Compute a value for every node. `leaf` computes a term's, `add` a sum's from the values of its operands."""
        values = [leaf(term) for term in range(self.terms)]
        for members in self.sums:
            values.append(add([values[member] for member in members]))
        return values

    @cached_property
    def sizes(self) -> list[int]:
        """Number of terms below each node."""
        return self.fold(lambda term: 1, sum)

    @cached_property
    def first_terms(self) -> list[int]:
        """First term below each node."""
        return self.fold(lambda term: term, min)

    def meeting_size(self, one: int, other: int) -> int:
        """Return the number of terms below the lowest node that has both terms below it."""
        assert one != other
        nodes = {one, other}
        for sum, members in enumerate(self.sums, self.terms):
            if nodes.intersection(members):
                nodes = nodes.difference(members) | {sum}
                if len(nodes) == 1:
                    return self.sizes[sum]
        raise AssertionError("every two terms meet at the root at the latest")

    @property
    def depth(self) -> int:
        """Largest number of roundings that a term goes through.

        The error of a sum is at most about depth x 2^-24 x the sum of |terms| in float32 (Higham 2002, "Accuracy and
        Stability of Numerical Algorithms", section 4.2).
        """
        return self.fold(lambda term: 0, lambda below: 1 + max(below))[-1]

    @property
    def brackets(self) -> str:
        """Return the order in brackets with term numbers, such as `((0+1)+2)+3`."""
        text = self.fold(str, lambda members: f"({'+'.join(members)})")[-1]
        return text[1:-1] if self.sums else text

    def total(self, terms: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Add `terms`, of shape (terms, ...), along the first axis in this order. Each sum is rounded to float32.

        Operands that are added at once are rounded once.
        """
        rows = np.asarray(terms, np.float32)
        assert len(rows) == self.terms
        total: npt.NDArray[np.float32] = self.fold(rows.__getitem__, _rounded_sum)[-1]
        return total


def _rounded_sum(members: list[Any]) -> Any:
    # Two operands are added in float32, because float64 would round them twice.
    return (
        members[0] + members[1] if len(members) == 2 else np.sum(members, axis=0, dtype=np.float64).astype(np.float32)
    )
