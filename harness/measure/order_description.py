"""A summation tree in words: what is the same many times over is said once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

from harness.measure.summation_tree import SummationTree

INDENT = "    "
LISTED = 4
"""So many numbers are listed one by one; of more the first two and the last stand for a regular row."""
MOST_RUNS = 6
"""So many different runs of parts are told apart."""


def describe(tree: SummationTree, noun: str) -> list[str]:
    """Lines of an outline, the last addition first; `noun` is what a term is called, in the plural."""
    return _Outline(tree, noun).lines(len(tree.sizes) - 1)


class _Outline:
    def __init__(self, tree: SummationTree, noun: str) -> None:
        self._tree = tree
        self._noun = noun
        self._shapes = _shapes(tree)

    def lines(self, node: int) -> list[str]:
        """What this node adds, and how what it adds was added, indented."""
        members = self._members(node)
        if not members:
            return [f"{self._noun} {node}"]
        distances = self._lane_distances(node)
        if len(members) > 2:
            order, parts = "in one step, or too exactly to tell", list(members)
        elif len(distances) > 1:
            order = f"as a tree of pairs ({distances[0]} apart, then {', then '.join(map(str, distances[1:]))})"
            parts = self._peeled(node, len(distances))
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
        for number, run in enumerate(runs[:MOST_RUNS]):
            lines += _indented([f"{'then ' if number else ''}{self._extent(run)}", *self._inside(run)])
        if len(runs) > MOST_RUNS:
            lines += _indented([f"then {sum(map(len, runs[MOST_RUNS:])):,} parts more, of other shapes"])
        return lines

    def _extent(self, run: Sequence[int]) -> str:
        """How many parts of how many terms, and where they begin."""
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
        return _indented([f"each part {first}" if len(run) > 1 else first, *rest])

    def _runs(self, parts: list[int]) -> Iterator[Iterator[int]]:
        """Neighbours that differ only by where they begin."""
        return (run for _, run in groupby(parts, key=self._shapes.__getitem__))

    def _members(self, node: int) -> tuple[int, ...]:
        return self._tree.sums[node - self._tree.terms] if node >= self._tree.terms else ()

    def _halves(self, node: int) -> bool:
        """Whether the node adds two parts of one shape."""
        members = self._members(node)
        return len(members) == 2 and self._shapes[members[0]] == self._shapes[members[1]]

    def _lane_distances(self, node: int) -> list[int]:
        """Distances of a tree over lanes, innermost first: each twice, or half, the one before.

        Empty where some outer level does not fit in: two tiles after each other are no more lanes.
        """
        distances: list[int] = []
        while self._halves(node):
            left, right = self._members(node)
            distances.insert(0, self._tree.first_terms[right] - self._tree.first_terms[left])
            node = left
        up = all(inner * 2 == outer for inner, outer in pairwise(distances))
        down = all(inner == outer * 2 for inner, outer in pairwise(distances))
        return distances if up or down else []

    def _peeled(self, node: int, levels: int) -> list[int]:
        parts = [node]
        for _ in range(levels):
            parts = [member for part in parts for member in self._members(part)]
        return sorted(parts, key=self._tree.first_terms.__getitem__)

    def _spine(self, node: int) -> list[int]:
        """The parts of a running sum, in order: the first is the largest, or as large as those that follow."""
        parts: list[int] = []
        while len(self._members(node)) == 2:
            left, right = self._members(node)
            if not self._halves(node):
                node, part = (left, right) if self._tree.sizes[left] >= self._tree.sizes[right] else (right, left)
                parts.append(part)
                continue
            alike = not parts or self._shapes[parts[-1]] == self._shapes[left]
            if alike or len(self._lane_distances(node)) < 2:
                # a + b is b + a: say it as the parts after them go.
                descending = parts and self._tree.first_terms[parts[-1]] < self._tree.first_terms[right]
                node, part = (right, left) if descending else (left, right)
                parts.append(part)
            break
        return [node, *reversed(parts)]


def _shapes(tree: SummationTree) -> list[int]:
    """A number for each node; nodes have the same where they differ only by where their terms begin."""
    known: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def shape_and_start(below: list[tuple[int, int]]) -> tuple[int, int]:
        start = min(first for _, first in below)
        form = tuple((shape, first - start) for shape, first in below)
        return known.setdefault(form, len(known)), start

    return [shape for shape, _ in tree.fold(lambda term: (0, term), shape_and_start)]


def _numbers(numbers: Sequence[int]) -> str:
    """Such as `0, 8, 16, 24` or `0, 1, ..., 127`; what is not regular is cut into rows that are."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and (len(rows[-1]) == 1 or number - rows[-1][-1] == rows[-1][1] - rows[-1][0]):
            rows[-1].append(number)
        else:
            rows.append([number])
    shown = [_row(row) for row in rows[:MOST_RUNS]]
    if len(rows) > MOST_RUNS:
        shown.append(f"and {sum(map(len, rows[MOST_RUNS:])):,} more without such a pattern")
    return ", then ".join(shown)


def _row(row: list[int]) -> str:
    if len(row) <= LISTED:
        return ", ".join(map(str, row))
    return f"{row[0]}, {row[1]}, ..., {row[-1]}"


def _indented(lines: list[str]) -> list[str]:
    return [INDENT + line for line in lines]
