"""Tile sizes that a user requests: parsed, checked against a variant's declared tiles, and made its only choice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.execution.planning.variant_calls import declared_refusal, declared_tiles
from harness.model.plan import Plan
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.traffic import Traffic
from harness.model.variant import Variant
from harness.support.errors import SandboxError, UsageError

LARGEST_LISTING = 8
"""Maximum number of tiles that an error message lists."""


def parse_tile(text: str) -> dict[str, int]:
    """`Br=32,Bc=64` -> {"Br": 32, "Bc": 64}. Raises `UsageError`."""
    tile: dict[str, int] = {}
    for part in text.split(","):
        name, _, word = (piece.strip() for piece in part.partition("="))
        if not name.isidentifier() or not (word.isascii() and word.isdigit()) or len(word) > 9:
            raise UsageError(f"--tile {text!r} is not NAME=N[,NAME=N], such as Br=32,Bc=64")
        if name in tile:
            raise UsageError(f"--tile {text!r} has {name} twice")
        tile[name] = int(word)
    return tile


def tile_of(variant: Variant, problem: BaseProblem) -> TileSizes | None:
    """The tile sizes that the variant uses for this problem; None if it declares none."""
    tiles = declared_tiles(variant, problem)
    return tiles[0] if tiles else None


def with_tile(variant: Variant, wanted: TileSizes) -> Variant:
    """A copy of the variant with a single tile: its default one, with the sizes in `wanted` replaced.

    If it declares no such tile for a problem, its `supports` returns a reason that lists the declared ones.
    """

    def supports(problem: BaseProblem) -> str | None:
        return variant.supports(problem) or _refusal(variant, problem, wanted)

    def tiles(problem: BaseProblem) -> list[TileSizes]:
        return [_completed(variant, problem, wanted)]

    def plan(problem: BaseProblem, tile: TileSizes | None = None, **given: str) -> Plan:
        return variant.plan(problem, tile or _completed(variant, problem, wanted), **given)

    def claim(problem: BaseProblem, tile: TileSizes | None = None) -> Traffic | None:
        assert variant.claim is not None
        return variant.claim(problem, tile or _completed(variant, problem, wanted))

    return replace(variant, supports=supports, tiles=tiles, plan=plan, claim=None if variant.claim is None else claim)


def choose_tile(variants: Iterable[Variant], problem: BaseProblem, wanted: TileSizes) -> list[Variant]:
    """Apply `with_tile` to each variant. Raises `UsageError` if none of them has such a tile."""
    chosen = list(variants)
    require_tile(chosen, [(problem, wanted)])
    return [with_tile(variant, wanted) for variant in chosen]


def require_tile(variants: Sequence[Variant], choices: Iterable[tuple[BaseProblem, TileSizes]]) -> None:
    """Raise `UsageError`, listing the available tiles, if no variant has any of the requested tiles."""
    cases, refusals = [], []
    for problem, wanted in choices:
        for variant in variants:
            try:
                if declared_refusal(variant, problem) is None:
                    refusals.append(_refusal(variant, problem, wanted))
                    cases.append((variant, problem, wanted))
            except SandboxError:
                refusals.append(None)  # reported in the variant's own row or point
                cases.append((variant, problem, wanted))
    if refusals and None not in refusals:
        nearest = max(range(len(cases)), key=lambda number: _sizes_had(*cases[number]))
        raise UsageError(f"{cases[nearest][0].name} has {refusals[nearest]}")


def tile_names(variants: Iterable[Variant], problem: BaseProblem) -> tuple[str, ...]:
    """Names of the tile sizes of these variants, in order. A variant that fails is skipped."""
    names: dict[str, Any] = {}
    for variant in variants:
        try:
            if variant.tiles is not None and variant.supports(problem) is None:
                names.update(dict.fromkeys(tile_of(variant, problem) or ()))
        except SandboxError:
            continue  # reported in the variant's own row or point
    return tuple(names)


def _completed(variant: Variant, problem: BaseProblem, wanted: TileSizes) -> dict[str, int]:
    return {**declared_tiles(variant, problem)[0], **wanted}


def _refusal(variant: Variant, problem: BaseProblem, wanted: TileSizes) -> str | None:
    """Why the variant has no such tile; None if it has. Raises `PlanError` if its `tiles` fails."""
    tiles = [dict(tile) for tile in declared_tiles(variant, problem)]
    if not tiles:
        return "no tile sizes to choose from"
    for name, size in wanted.items():
        if name not in tiles[0]:
            return f"no tile size {name!r}; there are {', '.join(tiles[0])}"
        sizes = sorted({tile[name] for tile in tiles})
        if size not in sizes:
            return f"no tile with {name}={size} here; {name} is one of {', '.join(map(str, sizes))}"
    completed = {**tiles[0], **wanted}
    if completed in tiles:
        return None
    # Each size exists separately: list the tiles that agree with most of them.
    most = max(_agreement(tile, wanted) for tile in tiles)
    near = [tile_text(tile) for tile in tiles if _agreement(tile, wanted) == most]
    more = f", or {len(near) - LARGEST_LISTING} others" if len(near) > LARGEST_LISTING else ""
    return f"no tile {tile_text(completed)} here; there is {' or '.join(near[:LARGEST_LISTING])}{more}"


def _sizes_had(variant: Variant, problem: BaseProblem, wanted: TileSizes) -> int:
    """Number of the requested sizes that some tile of the variant has."""
    tiles = declared_tiles(variant, problem)
    return sum(any(tile.get(name) == size for tile in tiles) for name, size in wanted.items())


def _agreement(tile: Mapping[str, int], wanted: TileSizes) -> int:
    return sum(tile[name] == size for name, size in wanted.items())
