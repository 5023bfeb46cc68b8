"""Compares the bits of a variant's result across batches, splits of the keys, and paddings of the queries."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.execution.isolation.variants import prefetch_replies
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import declared_tiles, make_plan
from harness.execution.protocol import Execution, Executor
from harness.model.arithmetic.ulps import ulps_apart
from harness.model.array_types import Arrays
from harness.model.invariance import INVARIANCES, SPLITS, Change
from harness.model.operation import operation_of
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.support.errors import SandboxError, UnsupportedProblem

_Difference = tuple[float, str, str]
_NO_RUN = ("this problem has no such change", "the variant offers no other tile sizes")
SIZES_OF_KEYS = ("Bc", "split")
"""Names of tile sizes that count keys."""
MOST_TILES = 3
"""Other tile sizes that are tried, of which each may have to be compiled."""


@dataclass(frozen=True, kw_only=True)
class Invariance:
    """What the bits of a variant's result depended on, in one of `INVARIANCES`."""

    kind: str
    declared: bool
    """Whether the variant declares it (`Variant.invariant_to`)."""
    ulps: float | None = None
    """Largest difference of an element, in floating-point numbers of its dtype; 0: the same bits in all runs. None if
    there was no run to compare with."""
    change: str | None = None
    """The run with that difference; None if there is none."""
    differing: str | None = None
    """How many elements of which output differed in that run."""
    reason: str | None = None
    """Why there was no run to compare with."""

    @property
    def holds(self) -> bool:
        """Whether what is declared held."""
        return not self.declared or not self.ulps


@dataclass(frozen=True, kw_only=True)
class VariantInvariance:
    """All of them for one variant, and what its tile sizes cost."""

    variant: str
    kinds: tuple[Invariance, ...]
    bytes_of_tiles: Mapping[str, int]
    """Bytes moved with each of the tile sizes that were tried, the variant's own first. Empty if they were not counted,
    or if there is no choice."""
    time_of_tiles: Mapping[str, float]
    """The same in milliseconds, on a GPU."""

    def of(self, kind: str) -> Invariance:
        """Return the one of this kind."""
        return next(each for each in self.kinds if each.kind == kind)

    @property
    def holds(self) -> bool:
        """Whether all that is declared held."""
        return all(each.holds for each in self.kinds)


def invariance_of(variant: Variant, problem: BaseProblem, inputs: Arrays, executor: Executor) -> VariantInvariance:
    """Run a variant on a problem, and on changed ones, and compare the bits of its results.

    Raises `SandboxError` if the variant fails on `problem` itself; on a changed problem, that is a reason.
    """

    def run(of: Variant, other: BaseProblem, values: Arrays) -> Execution:
        prefetch_replies(variant, other, None)
        return executor.run(other, make_plan(of, other), values)

    first = run(variant, problem, inputs)
    declared_first, *others = declared_tiles(variant, problem) or [{}]
    of_tiles = {tile_text(declared_first): first}

    def with_other_tiles() -> Iterator[Callable[[], _Difference]]:
        for tile in _some_tiles(declared_first, others):
            yield functools.partial(with_other_tile, tile)

    def with_other_tile(tile: TileSizes) -> _Difference:
        other = of_tiles[tile_text(tile)] = run(with_tile(variant, tile), problem, inputs)
        return _difference(first.outputs, other.outputs, tile_text(tile))

    def changed(change: Change) -> _Difference:
        there = run(variant, change.problem, change.inputs).outputs
        return _difference(first.outputs, there, change.what, change.own, change.there)

    def changes(kind: str) -> Iterator[Callable[[], _Difference]]:
        for change in operation_of(problem).changes(problem, inputs, kind):
            yield functools.partial(changed, change)

    kinds = tuple(
        _invariance(kind, kind in variant.invariant_to, with_other_tiles() if kind == SPLITS else changes(kind))
        for kind in INVARIANCES
    )
    has_choice = len(of_tiles) > 1
    return VariantInvariance(
        variant=variant.name,
        kinds=kinds,
        bytes_of_tiles={
            name: done.read_bytes + done.write_bytes
            for name, done in of_tiles.items()
            if has_choice and done.read_bytes is not None and done.write_bytes is not None
        },
        time_of_tiles={n: e.time_ms.median for n, e in of_tiles.items() if has_choice and e.time_ms is not None},
    )


def _invariance(kind: str, declared: bool, runs: Iterable[Callable[[], _Difference]]) -> Invariance:
    """The largest difference in any of these runs."""
    found: list[_Difference] = []
    reason = _NO_RUN[kind == SPLITS]
    for run in runs:
        try:
            found.append(run())
        except (SandboxError, UnsupportedProblem) as error:
            reason = str(error)
    if not found:
        return Invariance(kind=kind, declared=declared, reason=reason)
    ulps, change, differing = max(found, key=lambda each: each[0])
    if ulps == 0:
        return Invariance(kind=kind, declared=declared, ulps=0.0)
    return Invariance(kind=kind, declared=declared, ulps=ulps, change=change, differing=differing)


def _some_tiles(own: TileSizes, others: Sequence[TileSizes]) -> list[TileSizes]:
    """Return a few of the other tile sizes: of those that differ in the keys alone, or else of all, both ends."""

    def differs_in_keys(tile: TileSizes) -> bool:
        return all(tile[name] == own.get(name) for name in tile if name not in SIZES_OF_KEYS)

    of_keys = [tile for tile in others if differs_in_keys(tile)]
    chosen = sorted(of_keys or others, key=lambda tile: sorted(tile.items()))
    return chosen if len(chosen) <= MOST_TILES else [chosen[0], chosen[len(chosen) // 2], chosen[-1]]


def _difference(
    first: Arrays,
    second: Arrays,
    what: str,
    own: tuple[slice, ...] = (),
    there: tuple[Any, ...] = (),
) -> _Difference:
    """Return how far two results are apart, `what` describes the second, and how many elements of an output differ."""

    def of_output(name: str) -> tuple[float, str]:
        apart = ulps_apart(np.asarray(first[name])[own], np.asarray(second[name])[there])
        return float(apart.max(initial=0.0)), f"{int((apart > 0).sum()):,} of {apart.size:,} elements of {name}"

    ulps, differing = max(map(of_output, first), key=lambda each: each[0])
    return ulps, what, differing
