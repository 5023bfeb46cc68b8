"""Describes a summation tree in words; repeated parts are described once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from harness.model.arithmetic.summation_tree import SummationTree

INDENT = "    "
LISTED = 4
"""Up to this many numbers are listed individually; of a longer regular sequence, only the first two and the last."""
MOST_ROWS = 6
"""Maximum number of regular sequences that are listed separately."""


def describe(tree: SummationTree, noun: str) -> list[str]:
    """Lines of an outline, the last addition first. `noun` is the plural for terms."""
    return _Outline(tree, noun).lines(len(tree.sizes) - 1)


class _Outline:
    def __init__(self, tree: SummationTree, noun: str) -> None:
        self._tree = tree
        self._noun = noun
        self._shapes = _shapes(tree)
        self._masks: list[int] = tree.fold(lambda term: 1 << term, lambda below: functools.reduce(operator.or_, below))

    def lines(self, node: int) -> list[str]:
        """The outline of a node's additions and, indented, of those of its parts."""
        members = self._members(node)
        if not members:
            return [f"{self._noun} {node}"]
        distances, lanes = self._lanes(node)
        if len(members) > 2:
            order, parts = "in one step, or too exactly to tell", list(members)
        elif len(distances) > 1:
            order = f"as a tree of pairs ({distances[0]} apart, then {', then '.join(map(str, distances[1:]))})"
            parts = lanes
        else:
            order, parts = "one after the other", self._spine(node)
        return self._parts(order, parts)

    def _parts(self, order: str, parts: list[int]) -> list[str]:
        runs = [[*run] for run in self._runs(parts)]
        if all(part < self._tree.terms for part in parts):
            return [f"{order}: {self._noun} {_numbers(parts)}"]
        if len(runs) == 1:
            return [f"{order}: {self._extent(parts)}", *self._inside(parts)]
        lines = [f"{order}:"]
        for number, run in enumerate(runs):
            lines += _indented([f"{'then ' if number else ''}{self._extent(run)}", *self._inside(run)])
        return lines

    def _extent(self, run: Sequence[int]) -> str:
        """The number of parts, their number of terms, and where they begin."""
        starts = [self._tree.first_terms[part] for part in run]
        size = self._tree.sizes[run[0]]
        if size == 1:
            return f"{self._noun} {_numbers(starts)}"
        if len(run) == 1:
            return f"a part of {size:,} {self._noun}, which starts at {starts[0]}"
        return f"{len(run):,} parts of {size:,} {self._noun}, which start at {_numbers(starts)}"

    def _inside(self, run: Sequence[int]) -> list[str]:
        if self._tree.sizes[run[0]] == 1:
            return []
        first, *rest = self.lines(run[0])
        return _indented([f"in each, {first}" if len(run) > 1 else first, *rest])

    def _runs(self, parts: list[int]) -> Iterator[Iterator[int]]:
        """Runs of neighbours that differ only in where they begin."""
        return (run for _, run in groupby(parts, key=self._shapes.__getitem__))

    def _members(self, node: int) -> tuple[int, ...]:
        return self._tree.sums[node - self._tree.terms] if node >= self._tree.terms else ()

    def _lanes(self, node: int) -> tuple[list[int], list[int]]:
        """The distances of a pairwise tree over lanes, innermost first, and the lanes.

        Fewer than two distances mean that there is no such tree. Lane (t - start) // distance of term t is even in one
        half and odd in the other, with each distance being twice or half the previous one. Lanes need not be equally
        long.
        """
        members = self._members(node)
        if len(members) != 2:
            return [], [node]
        start, outermost = self._tree.first_terms[node], self._tree.first_terms[members[1]]
        up = self._halved([node], start, outermost - start, lambda distance: distance * 2)
        down = self._halved([node], start, outermost - start, lambda distance: distance // 2)
        return max(up, down, key=lambda found: len(found[0]))

    def _halved(
        self, parts: list[int], start: int, distance: int, next: Callable[[int], int]
    ) -> tuple[list[int], list[int]]:
        distances: list[int] = []
        while distance:
            odd = sum(1 << term for term in range(start, self._tree.terms) if (term - start) // distance % 2)
            halves = [self._members(part) for part in parts]
            if not all(
                len(half) == 2 and not self._masks[half[0]] & odd and not self._masks[half[1]] & ~odd for half in halves
            ):
                break
            parts = [half for both in halves for half in both]
            distances.insert(0, distance)
            distance = next(distance)
        return distances, sorted(parts, key=self._tree.first_terms.__getitem__)

    def _spine(self, node: int) -> list[int]:
        """The parts of a running sum, in order. The first is the largest, or as large as those that follow."""
        parts: list[int] = []
        while len(self._members(node)) == 2:
            left, right = self._members(node)
            alike = self._shapes[left] == self._shapes[right]
            followed = not parts or self._shapes[parts[-1]] == self._shapes[right]
            if parts and not (alike and followed) and len(self._lanes(node)[0]) > 1:
                break
            # a + b is b + a: of two equally large parts, the one that continues the sequence is named first.
            falling = parts and self._tree.first_terms[parts[-1]] < self._tree.first_terms[right]
            swap = falling if alike else self._tree.sizes[left] < self._tree.sizes[right]
            node, part = (right, left) if swap else (left, right)
            parts.append(part)
            if alike:
                break
        return [node, *reversed(parts)]


def _shapes(tree: SummationTree) -> list[int]:
    """A number for each node; equal numbers mean that nodes differ only in where their terms begin."""
    known: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def shape_and_start(below: list[tuple[int, int]]) -> tuple[int, int]:
        start = min(first for _, first in below)
        form = tuple((shape, first - start) for shape, first in below)
        return known.setdefault(form, len(known)), start

    return [shape for shape, _ in tree.fold(lambda term: (0, term), shape_and_start)]


def _numbers(numbers: Sequence[int]) -> str:
    """Such as `0, 8, 16, 24` or `0, 1, ..., 127`; irregular sequences are split into regular ones."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and (len(rows[-1]) == 1 or number - rows[-1][-1] == rows[-1][1] - rows[-1][0]):
            rows[-1].append(number)
        else:
            rows.append([number])
    shown = [_row(row) for row in rows[:MOST_ROWS]]
    more = sum(map(len, rows[MOST_ROWS:]))
    return ", then ".join(shown) + (f", and {more:,} more" if more else "")


def _row(row: list[int]) -> str:
    if len(row) <= LISTED:
        return ", ".join(map(str, row))
    return f"{row[0]}, {row[1]}, ..., {row[-1]}"


def _indented(lines: list[str]) -> list[str]:
    return [INDENT + line for line in lines]
