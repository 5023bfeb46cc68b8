"""Registers an algorithm in several languages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import Numerics, Plan, Problem, Registry, Traffic, Variant
from variants._features import BAND_FEATURES
from variants._tiles import Tile, unsupported

Kernels = Callable[[Problem, Any], tuple[Any, ...]]
"""Maps (problem, tile) to the algorithm's kernels in one language, in the order of `plan`.

The kernels of all languages take the same arguments.
"""


ROW_BY_ROW = ("batch", "padding")
"""`invariant_to` of kernels in which the bits of a row depend neither on other rows nor on how many there are."""


def register_languages(
    registry: Registry,
    algorithm: str,
    idea: str,
    languages: Mapping[str, Kernels],
    plan: Callable[[Problem, Kernels, Any], Plan],
    claim: Callable[[Problem, Any], Traffic],
    tiles: Callable[[Problem], Sequence[Mapping[str, int]]],
    numerics: Numerics,
    *,
    takes: tuple[str, ...] = BAND_FEATURES,
    supports: Callable[[Problem], str | None] = unsupported,
    tile_class: Callable[..., Any] = Tile,
    operation: str = "attention",
    deterministic: bool = True,
    arch: str | None = None,
    invariant_to: tuple[str, ...] = ("batch",),
) -> None:
    """Add `<algorithm>-<language>` for each of `languages`, which are the variants' backends.

    `plan` is called with the problem, the language's `Kernels`, and the tile, an instance of `tile_class`, whose fields
    are the sizes that `tiles` returns.
    """
    for language, kernels in languages.items():
        registry.add(
            Variant(
                name=f"{algorithm}-{language}",
                operation=operation,
                algorithm=algorithm,
                backend=language,
                idea=idea,
                # Partial functions of this module's, not closures: they can be sent to worker processes.
                plan=functools.partial(_planned, plan, tile_class, kernels),
                supports=supports,
                claim=functools.partial(_claimed, claim, tile_class),
                tiles=tiles,
                takes=takes,
                deterministic=deterministic,
                arch=arch,
                invariant_to=invariant_to,
                numerics=numerics,
            )
        )


def _planned(
    plan: Callable[[Problem, Kernels, Any], Plan],
    tile_class: Callable[..., Any],
    kernels: Kernels,
    problem: Problem,
    tile: Mapping[str, int] | None = None,
) -> Plan:
    return plan(problem, kernels, _tile(tile_class, tile))


def _claimed(
    claim: Callable[[Problem, Any], Traffic],
    tile_class: Callable[..., Any],
    problem: Problem,
    tile: Mapping[str, int] | None = None,
) -> Traffic:
    return claim(problem, _tile(tile_class, tile))


def _tile(tile_class: Callable[..., Any], sizes: Mapping[str, int] | None) -> Tile | None:
    return None if sizes is None else tile_class(**sizes)
