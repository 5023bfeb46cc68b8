"""What a variant's kernels are compiled for in a campaign: the builds that it takes, with the tiles it declares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.execution.planning import declared_tiles, refusal_of
from harness.execution.tiles import parse_tile
from harness.model.build import Build
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.support.errors import SandboxError

STAGES = "stages"
"""What they call how many tiles are on chip at once. A mistake in how copies are waited for may take more than two."""
SMALLEST_AT, LARGEST_AT, STAGED_AT = 3, 5, 4
"""Where tiles other than the default one come in, in the order of builds; the largest sooner if it has stages: what is
found there would be found late otherwise."""


def builds_for(variant: Variant, builds: Sequence[Build]) -> tuple[Build, ...]:
    """Those of `builds` that the variant takes for a plain problem, with its own tiles, and two more of other tiles.

    Those are the smallest tile, and the largest among those with most stages. Where it takes none of the builds, all of
    them: then its refusals are what there is to report.
    """
    found = [first for build in builds if (first := _first_taken(variant, (*build.rather, build))) is not None]
    taken = [_with_default_tile(variant, build) for build in {build.key: build for build in found}.values()]
    if not taken:
        return tuple(builds)
    plainest = taken[0]
    tiles = sorted(_tiles(variant, plainest), key=lambda tile: math.prod(tile.values()))
    largest = sorted(tiles, key=lambda tile: tile.get(STAGES, 0))[-1:]
    largest_at = STAGED_AT if any(STAGES in tile for tile in largest) else LARGEST_AT
    for place, tile in ((SMALLEST_AT, tiles[:1]), (largest_at, largest)):
        for sizes in tile:
            taken.insert(place, plainest.sized(sizes, tile_text(sizes)))
    return tuple(taken)


def sanitized_builds(builds: Sequence[Build]) -> tuple[Build, ...]:
    """The builds that the sanitizer looks at in a campaign: the plainest, a wide one, and the one with most stages.

    It compiles each once more. A race that needs none of these is as likely in any build.
    """
    wide = [build for build in builds if build.is_wide]
    staged = [build for build in builds if _stages(build)]
    return tuple(dict.fromkeys((*builds[:1], *wide[:1], *sorted(staged, key=_stages)[-1:])))


def _stages(build: Build) -> int:
    return 0 if build.tile is None else parse_tile(build.tile).get(STAGES, 0)


def _first_taken(variant: Variant, builds: Sequence[Build]) -> Build | None:
    return next((build for build in builds if _is_taken(variant, build)), None)


def _is_taken(variant: Variant, build: Build) -> bool:
    try:
        return refusal_of(variant, build.plain_problem) is None
    except SandboxError:
        return True  # the first case will meet this again and report it


def _tiles(variant: Variant, build: Build) -> Sequence[TileSizes]:
    try:
        return declared_tiles(variant, build.plain_problem)
    except SandboxError:
        return ()


def _with_default_tile(variant: Variant, build: Build) -> Build:
    tiles = _tiles(variant, build)
    return build.sized(tiles[0], None) if tiles else build
