"""Chooses the builds of a campaign: compile-time features that a variant supports, combined with its declared tiles."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from harness.execution.planning.tiles import parse_tile
from harness.execution.planning.variant_calls import declared_tiles, refusal_of
from harness.model.cases.build import Build, Builds
from harness.model.cases.case import Case
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.support.errors import SandboxError

STAGES = "stages"
"""Name of the tile size that is the number of pipeline stages. Errors in waiting for copies may need more than two
stages."""
SMALLEST_AT, LARGEST_AT, STAGED_AT = 3, 5, 4
"""Positions of builds with other than the default tile. The largest tile comes sooner if it has stages, since errors
there would be found late otherwise."""


def builds_for(variant: Variant, builds: Sequence[Build]) -> tuple[Build, ...]:
    """The `builds` that the variant supports for a plain problem, with its own tiles, and two more with other tiles.

    Those are the smallest tile, and the largest tile among those with the most stages. If it supports none of the
    builds, all are returned, so that its refusals are reported.
    """
    choices = ((*build.preferred, build, *build.fallbacks) for build in builds)
    found = [first for each in choices if (first := _first_taken(variant, each)) is not None]
    plain = list({build.key: build for build in found}.values())
    if not plain:
        return tuple(builds)
    tiles = _smallest_first(variant, plain[0])
    # A build with one of its tiles, indexed from the smallest or from the largest; None: its default one.
    places: list[tuple[Build, int | None]] = [(build, None) for build in plain]
    if tiles:
        dtype = plain[0].plain_problem.build_key[0]
        usual = (build for build in plain if build.is_usual and build.plain_problem.build_key[0] == dtype)
        places.insert(SMALLEST_AT, (next((build for build in usual if _tiles(variant, build)), plain[0]), 0))
        places.insert(STAGED_AT if STAGES in _most_staged(tiles)[-1] else LARGEST_AT, (plain[0], -1))
    return tuple(_at_its_place(variant, build, place, which) for place, (build, which) in enumerate(places))


def _at_its_place(variant: Variant, plain: Build, place: int, which: int | None) -> Build:
    """A build with as many supported features as are due at that position, and with that tile."""
    wanted = plain.with_features(variant.takes, place)
    build = _first_taken(variant, (wanted, *wanted.with_fewer_features)) or plain
    if which is None:
        return _with_default_tile(variant, build)
    tiles = _smallest_first(variant, build)
    sizes = (_most_staged(tiles) if which else tiles)[which]
    return build.with_tile(sizes, tile_text(sizes))


def _smallest_first(variant: Variant, build: Build) -> list[TileSizes]:
    return sorted(_tiles(variant, build), key=lambda tile: math.prod(tile.values()))


def _most_staged(tiles: Sequence[TileSizes]) -> list[TileSizes]:
    """The tiles with the most stages, sorted so that the largest is last."""
    return sorted(tiles, key=lambda tile: tile.get(STAGES, 0))


def sanitized_builds(builds: Sequence[Build]) -> tuple[Build, ...]:
    """The builds that are run under the sanitizer: the plainest, a wide one, and the one with the most stages.

    The sanitizer compiles each of them separately. A race that needs none of these is equally likely in any build.
    """
    wide = [build for build in builds if build.is_wide]
    staged = [build for build in builds if _stages(build)]
    return tuple(dict.fromkeys((*builds[:1], *wide[:1], *sorted(staged, key=_stages)[-1:])))


def traits_not_met(builds: Sequence[Build], met: Collection[str]) -> tuple[str, ...]:
    """Features and value classes that some build includes, but none whose name is in `met`, in order."""
    seen = {trait for build in builds if build.name in met for trait in build.traits}
    return tuple(dict.fromkeys(trait for build in builds for trait in build.traits if trait not in seen))


def builds_with(builds: Builds, case: Case) -> Builds | None:
    """`builds`, extended by the case's own build if it was drawn with another seed; None if it has none."""
    wanted = (case.problem.build_key, case.tile)
    if any(each.key == wanted for build in builds.known for each in (build, *build.with_fewer_features)):
        return builds
    build = builds.known[0].of_problem(case.problem)
    try:
        if build is not None and case.tile is not None:
            build = build.with_tile(parse_tile(case.tile), case.tile)
    except SandboxError:
        return None
    return None if build is None or build.key != wanted else Builds((*builds.known, build))


def _stages(build: Build) -> int:
    return 0 if build.tile is None else parse_tile(build.tile).get(STAGES, 0)


def _first_taken(variant: Variant, builds: Sequence[Build]) -> Build | None:
    return next((build for build in builds if _is_taken(variant, build)), None)


def _is_taken(variant: Variant, build: Build) -> bool:
    try:
        return refusal_of(variant, build.plain_problem) is None
    except SandboxError:
        return True  # reported by the first case


def _tiles(variant: Variant, build: Build) -> Sequence[TileSizes]:
    try:
        return declared_tiles(variant, build.plain_problem)
    except SandboxError:
        return ()


def _with_default_tile(variant: Variant, build: Build) -> Build:
    tiles = _tiles(variant, build)
    return build.with_tile(tiles[0], None) if tiles else build
