"""One algorithm, two backends: how each folder here registers its variants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from harness.problem import Problem
from harness.variant import BACKENDS, Numerics, Plan, Registry, Traffic, Variant
from variants._tiles import Tile, unsupported


def register_backends(
    registry: Registry,
    algorithm: str,
    idea: str,
    plan: Callable[[Problem, str, Tile | None], Plan],
    claim: Callable[[Problem, Tile | None], Traffic],
    tiles: Callable[[Problem], Sequence[Mapping[str, int]]],
    numerics: Numerics,
) -> None:
    """Add `<algorithm>-cupy` and `<algorithm>-numba`. `plan` is called with the problem, the backend and the tile."""
    for backend in BACKENDS:
        registry.add(
            Variant(
                name=f"{algorithm}-{backend}",
                algorithm=algorithm,
                backend=backend,
                idea=idea,
                # Partial functions of this module's, not closures: they can be sent to worker processes.
                plan=functools.partial(_planned, plan, backend),
                supports=unsupported,
                claim=functools.partial(_claimed, claim),
                tiles=tiles,
                numerics=numerics,
            )
        )


def _planned(
    plan: Callable[[Problem, str, Tile | None], Plan],
    backend: str,
    problem: Problem,
    tile: Mapping[str, int] | None = None,
) -> Plan:
    return plan(problem, backend, _tile(tile))


def _claimed(
    claim: Callable[[Problem, Tile | None], Traffic], problem: Problem, tile: Mapping[str, int] | None = None
) -> Traffic:
    return claim(problem, _tile(tile))


def _tile(sizes: Mapping[str, int] | None) -> Tile | None:
    return None if sizes is None else Tile(**sizes)
