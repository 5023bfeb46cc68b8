"""One algorithm, two backends: how each folder here registers its variants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import Numerics, Plan, Problem, Registry, Traffic, Variant
from variants._tiles import Tile, unsupported


def register_backends(
    registry: Registry,
    algorithm: str,
    idea: str,
    plan: Callable[[Problem, str, Any], Plan],
    claim: Callable[[Problem, Any], Traffic],
    tiles: Callable[[Problem], Sequence[Mapping[str, int]]],
    numerics: Numerics,
    *,
    supports: Callable[[Problem], str | None] = unsupported,
    tile_class: type[Tile] = Tile,
    backends: Sequence[str] = ("cupy", "numba"),
) -> None:
    """Add `<algorithm>-<backend>` of each. `plan` is called with the problem, the backend and the tile.

    `tile_class` is what the sizes that `tiles` offers are the fields of.
    """
    for backend in backends:
        registry.add(
            Variant(
                name=f"{algorithm}-{backend}",
                algorithm=algorithm,
                backend=backend,
                idea=idea,
                # Partial functions of this module's, not closures: they can be sent to worker processes.
                plan=functools.partial(_planned, plan, tile_class, backend),
                supports=supports,
                claim=functools.partial(_claimed, claim, tile_class),
                tiles=tiles,
                numerics=numerics,
            )
        )


def _planned(
    plan: Callable[[Problem, str, Any], Plan],
    tile_class: type[Tile],
    backend: str,
    problem: Problem,
    tile: Mapping[str, int] | None = None,
) -> Plan:
    return plan(problem, backend, _tile(tile_class, tile))


def _claimed(
    claim: Callable[[Problem, Any], Traffic],
    tile_class: type[Tile],
    problem: Problem,
    tile: Mapping[str, int] | None = None,
) -> Traffic:
    return claim(problem, _tile(tile_class, tile))


def _tile(tile_class: type[Tile], sizes: Mapping[str, int] | None) -> Tile | None:
    return None if sizes is None else tile_class(**sizes)
