"""What a variant's kernels are compiled for in a campaign: the builds that it takes, with the tiles it declares."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from harness.execution.planning import declared_tiles, refusal_of
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem
from harness.operations.attention.strategies import Build
from harness.support.errors import SandboxError

ROWS, KEYS, SPLIT = "Br", "Bc", "split"
"""What variants call the sizes of their tiles. Where keys are split over thread blocks, a split is the tile whose edges
lengths are drawn around: several of them, and all that is in one, are then met in one campaign."""
STAGES = "stages"
"""What they call how many tiles are on chip at once. A mistake in how copies are waited for may take more than two."""
PLAIN_LENGTH = 128
SMALLEST_AT, LARGEST_AT, STAGED_AT = 3, 6, 4
"""Where tiles other than the default one come in, in the order of builds; the largest sooner if it has stages: the last
build of a usual campaign is drawn two or three times, or never."""


def builds_for(variant: Variant, builds: Sequence[Build]) -> tuple[Build, ...]:
    """Those of `builds` that the variant takes for a plain problem, with its own tiles, and two more of other tiles.

    Those are the smallest tile, and the largest among those with most stages. Where it takes none of the builds, all of
    them: then its refusals are what there is to report.
    """
    taken = [_with_default_tile(variant, build) for build in builds if _is_taken(variant, build)]
    if not taken:
        return tuple(builds)
    plainest = taken[0]
    tiles = sorted(_tiles(variant, plainest), key=lambda tile: math.prod(tile.values()))
    largest = sorted(tiles, key=lambda tile: tile.get(STAGES, 0))[-1:]
    largest_at = STAGED_AT if any(STAGES in tile for tile in largest) else LARGEST_AT
    for place, tile in ((SMALLEST_AT, tiles[:1]), (largest_at, largest)):
        for sizes in tile:
            taken.insert(place, dataclasses.replace(_sized(plainest, sizes), tile=tile_text(sizes)))
    return tuple(taken)


def _plain_problem(build: Build) -> Problem:
    return Problem(heads=1, q_len=PLAIN_LENGTH, kv_len=PLAIN_LENGTH, head_dim=build.head_dim, dtype=build.dtype)


def _is_taken(variant: Variant, build: Build) -> bool:
    try:
        return refusal_of(variant, _plain_problem(build)) is None
    except SandboxError:
        return True  # the first case will meet this again and report it


def _tiles(variant: Variant, build: Build) -> Sequence[TileSizes]:
    try:
        return declared_tiles(variant, _plain_problem(build))
    except SandboxError:
        return ()


def _with_default_tile(variant: Variant, build: Build) -> Build:
    tiles = _tiles(variant, build)
    return _sized(build, tiles[0]) if tiles else build


def _sized(build: Build, tile: TileSizes) -> Build:
    keys = tile.get(SPLIT, tile.get(KEYS, build.tile_keys))
    return dataclasses.replace(build, tile_rows=tile.get(ROWS, build.tile_rows), tile_keys=keys)
