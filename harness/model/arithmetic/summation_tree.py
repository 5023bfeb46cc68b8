"""In which order terms are added: a tree whose leaves are the terms and whose inner nodes are the rounded sums."""

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

    Terms are the nodes 0 .. terms - 1. `sums[s]` is node terms + s: the nodes that one rounded addition adds, two as a
    rule, more where the hardware adds several at once or so exactly that no order shows. Later sums may name earlier
    ones, not the other way round, and the last sum is the result. `of` builds trees in the one form that makes equal
    orders compare equal.
    """

    terms: int
    """How many are added, at least 1."""
    sums: tuple[tuple[int, ...], ...]
    """None where there is one term."""

    @classmethod
    def of(cls, terms: int, children: Sequence[Sequence[int]], root: int | None = None) -> SummationTree:
        """The tree below `root` (None: the last node), where `children[s]` are what node terms + s adds.

        Sums that the root does not lead to are left out.
        """
        if root is None:
            root = terms + len(children) - 1
        reached, open_nodes = [], [root] if root >= terms else []
        while open_nodes:
            node = open_nodes.pop()
            reached.append(node)
            open_nodes += [child for child in children[node - terms] if child >= terms]
        size, first = dict.fromkeys(range(terms), 1), dict(enumerate(range(terms)))
        for node in reversed(reached):  # the first reached is the root: a sum comes after what it adds
            size[node] = sum(size[child] for child in children[node - terms])
            first[node] = min(first[child] for child in children[node - terms])
        assert size[root] == terms
        # Sums with the same first term lie within one another, so they differ in size.
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
        """A value for every node: `leaf` gives those of the terms, `add` makes a sum's from those of what it adds."""
        values = [leaf(term) for term in range(self.terms)]
        for members in self.sums:
            values.append(add([values[member] for member in members]))
        return values

    @cached_property
    def sizes(self) -> list[int]:
        """Terms below each node."""
        return self.fold(lambda term: 1, sum)

    @cached_property
    def first_terms(self) -> list[int]:
        """The first of the terms below each node."""
        return self.fold(lambda term: term, min)

    def meeting_size(self, one: int, other: int) -> int:
        """Terms below the lowest node that has both these terms below it."""
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
        """The most roundings that a term goes through.

        A sum's error is at most about depth x 2^-24 x the sum of |terms| in float32 (Higham 2002, "Accuracy and
        Stability of Numerical Algorithms", section 4.2).
        """
        return self.fold(lambda term: 0, lambda below: 1 + max(below))[-1]

    @property
    def brackets(self) -> str:
        """Such as `((0+1)+2)+3`: terms by number."""
        text = self.fold(str, lambda members: f"({'+'.join(members)})")[-1]
        return text[1:-1] if self.sums else text

    def total(self, terms: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """`terms`, of shape (terms, ...), added up along the first axis in this order, each sum rounded to float32.

        What is added at once is rounded once.
        """
        rows = np.asarray(terms, np.float32)
        assert len(rows) == self.terms
        total: npt.NDArray[np.float32] = self.fold(rows.__getitem__, _rounded_sum)[-1]
        return total


def _rounded_sum(members: list[Any]) -> Any:
    # Two are added in float32: through float64 they would be rounded twice.
    return (
        members[0] + members[1] if len(members) == 2 else np.sum(members, axis=0, dtype=np.float64).astype(np.float32)
    )
