"""Reveals the order in which a sum is added, from the effects of rounding on chosen terms.

The sum is evaluated by a function `ask`. There are two kinds of questions, because some sums cannot have terms of both
signs:

- `order_from_counts`: term i is a huge M, term j is -M, all others are 1. Ones that are added to a partial sum that
holds M or -M are absorbed, so the result counts the ones that joined after M and -M had cancelled: all terms except
those below the lowest node that has both i and j below it. Xie, Gao, Wang and Xue 2025, "FPRev: Revealing the Order
of Floating-Point Summation", USENIX ATC.
- `order_from_joins`: term i is 1, terms j and k are 0.29 units in the last place of 1, all others are 0. Each of the
two alone is absorbed by the 1; both together change it, so the result differs from 1 if j and k meet before either
meets i. The answers for all triples of terms determine a tree as well. No term is negative.

Both follow FPRev's refinement: the nodes above one term (the pivot) are found first, with n - 1 questions, and the
operands of each of them are resolved in the same way. Independent questions are passed to `ask` together, since a
kernel can answer many at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, TypeVar

from harness.model.arithmetic.summation_tree import SummationTree
from harness.support.errors import OrderNotRevealed

Pair = tuple[int, int]
"""Positions of M and -M."""
Triple = tuple[int, int, int]
"""Terms i, j, k of the question whether j and k meet before either meets i."""
Result = TypeVar("Result")

# A search yields lists of questions, receives their answers in the same order, and returns its result.
_Search = Generator[list[Any], list[Any], Result]


def order_from_counts(terms: int, ask: Callable[[list[Pair]], Sequence[int]]) -> SummationTree:
    """Return the order of a sum of `terms` terms. For each pair, `ask` returns how many ones the result contains.

    A chain from the first term needs terms - 1 questions, other orders about terms x log(terms). Raises
    `OrderNotRevealed` if the answers do not fit a tree.
    """
    return _Counts(terms).tree(ask)


def order_from_joins(
    terms: int, ask: Callable[[list[Triple]], Sequence[bool]], guesses: Iterable[SummationTree] = ()
) -> SummationTree:
    """Return the order of a sum of `terms` terms, from questions which two of three terms meet first.

    For each i, j, k, `ask` returns whether j and k meet before either meets i. Confirming a correct guess takes 2 x
    terms questions; without one, about terms x log(terms)^2 are needed. If a sum is rounded only once, the answer to
    all three questions about the same three terms is yes.
    """
    for guess in guesses:
        if guess.terms == terms and _confirmed(guess, ask):
            return guess
    return _Joins(terms).tree(ask)


def _confirmed(tree: SummationTree, ask: Callable[[list[Triple]], Sequence[bool]]) -> bool:
    """Whether the answers are those of this tree. Always False for a tree with sums of more than two operands.

    For each sum that is an operand of another, one question is decisive: whether its own terms meet before they meet
    the other operand's. Steel 1992, "The complexity of reconstructing trees from qualitative characters and subtrees",
    J. Classification 9. A second question excludes that all three are added at once.
    """
    if any(len(members) != 2 for members in tree.sums):
        return False
    questions: list[Triple] = []
    for members in tree.sums:
        for inside, outside in (members, members[::-1]):
            if inside >= tree.terms:
                j, k = (tree.first_terms[member] for member in tree.sums[inside - tree.terms])
                i = tree.first_terms[outside]
                questions += [(i, j, k), (j, i, k)]
    return list(ask(questions)) == [True, False] * (len(questions) // 2) if questions else True


class _Revealer:
    """Base class of both searches: holds the sums found so far and joins them."""

    def __init__(self, terms: int) -> None:
        self._terms = terms
        self._children: list[tuple[int, ...]] = []
        self._random = random.Random(0)

    def tree(self, ask: Callable[[list[Any]], Sequence[Any]]) -> SummationTree:
        """Ask questions until the tree is known, and return it."""
        return SummationTree.of(self._terms, self._children, _answered(self._search(list(range(self._terms))), ask))

    def _search(self, group: list[int]) -> _Search[int]:
        raise NotImplementedError

    def _pivot(self, group: list[int]) -> tuple[int, list[int]]:
        # The first term as pivot reveals a chain at once. Below that the pivot is random, as in quicksort, which avoids
        # bad cases.
        at = 0 if len(group) == self._terms else self._random.randrange(len(group))
        return group[at], group[:at] + group[at + 1 :]

    def _below(self, node: int) -> tuple[int, ...]:
        return self._children[node - self._terms] if node >= self._terms else ()

    def _join(self, node: int, other: int, at_once: bool) -> int:
        """Create the sum of two nodes. With `at_once`, the operands of `other` become operands of this sum."""
        self._children.append((node, *self._below(other)) if at_once else (node, other))
        return self._terms + len(self._children) - 1


class _Counts(_Revealer):
    def _search(self, group: list[int]) -> _Search[int]:
        root, _ = yield from self._measured(group)
        return root

    def _measured(self, group: list[int]) -> _Search[tuple[int, int]]:
        """Return the node that sums `group`, and the number of terms below the highest node at which its terms meet.

        The number exceeds the size of the group if its terms are added in one step with others.
        """
        if len(group) == 1:
            return group[0], 1
        pivot, others = self._pivot(group)
        ones = yield [(pivot, other) for other in others]
        levels: dict[int, list[int]] = {}
        for other, count in zip(others, ones):
            levels.setdefault(self._terms - count, []).append(other)
        parts = yield from _together([self._measured(levels[size]) for size in sorted(levels)])
        node, below = pivot, 1
        for size, (part, part_size) in zip(sorted(levels), parts):
            below += len(levels[size])
            at_once = part_size > len(levels[size])
            # Below the group's highest node, all terms belong to the group.
            if (size != below and (below < len(group) or size < below)) or (at_once and part_size != size):
                raise OrderNotRevealed(
                    f"the answers contradict each other: {below} terms meet where {size} should, seen from term {pivot}"
                )
            node = self._join(node, part, at_once)
        return node, max(levels)


class _Joins(_Revealer):
    def _search(self, group: list[int]) -> _Search[int]:
        if len(group) == 1:
            return group[0]
        pivot, others = self._pivot(group)
        levels = yield from self._levels(pivot, others)
        parts = yield from _together([self._search(level) for level in levels])
        # If the terms of a part meet the pivot as early as each other, they are added with it at once and are not a
        # part.
        tops = [self._two_below(part) for part in parts]
        answers = iter((yield [(two[1], pivot, two[0]) for two in tops if two]))
        node = pivot
        for part, two in zip(parts, tops):
            node = self._join(node, part, bool(two) and next(answers))
        return node

    def _levels(self, pivot: int, others: list[int]) -> _Search[list[list[int]]]:
        """Group `others` by the node at which they meet the pivot, lowest first.

        A quicksort; both halves proceed together.
        """
        if len(others) <= 1:
            return [others] if others else []
        middle = others[self._random.randrange(len(others))]
        rest = [other for other in others if other != middle]
        answers = yield [(middle, pivot, other) for other in rest] + [(other, pivot, middle) for other in rest]
        earlier, later = answers[: len(rest)], answers[len(rest) :]
        lower = [other for other, yes, no in zip(rest, earlier, later) if yes and not no]
        higher = [other for other, no, yes in zip(rest, earlier, later) if yes and not no]
        same = [other for other, one, two in zip(rest, earlier, later) if one == two]
        below, above = yield from _together([self._levels(pivot, lower), self._levels(pivot, higher)])
        return [*below, sorted([middle, *same]), *above]

    def _two_below(self, node: int) -> tuple[int, int] | None:
        """Return two terms that first meet at this node; None if it is a term."""
        if node < self._terms:
            return None
        found = []
        for child in self._below(node)[:2]:
            while child >= self._terms:
                child = self._below(child)[0]
            found.append(child)
        return found[0], found[1]


def _answered(search: _Search[Result], ask: Callable[[list[Any]], Sequence[Any]]) -> Result:
    """Run a search to its end and return its result."""
    try:
        questions = next(search)
        while True:
            questions = search.send(list(ask(questions)) if questions else [])
    except StopIteration as end:
        result: Result = end.value
        return result


def _together(searches: Sequence[_Search[Result]]) -> _Search[list[Result]]:
    """Combine several searches: the questions of each round are asked together."""
    results: dict[int, Result] = {}
    answers: dict[int, list[Any] | None] = dict.fromkeys(range(len(searches)))
    while answers:
        questions: dict[int, list[Any]] = {}
        for index, answer in answers.items():
            try:
                questions[index] = searches[index].send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                results[index] = end.value
        replies = iter((yield [each for asked in questions.values() for each in asked]) if questions else ())
        answers = {index: [next(replies) for _ in asked] for index, asked in questions.items()}
    return [results[index] for index in range(len(searches))]
