"""Stores the tile sizes that `tune` found fastest per GPU, for use by `compare` and `bench`.

They are stored in the disk cache, keyed by everything that they depend on: the GPU, the variant with its kernels and
declared tiles, and the problem with its size rounded to the order of magnitude. A changed kernel has to be tuned again;
stale tiles are never used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness.compilers import kernel_identity
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import declared_tiles, make_plan
from harness.execution.protocol import Device
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.support.cache import Key, default_cache
from harness.support.errors import SandboxError

_KIND = "tuned"


def remember(variant: Variant, problem: BaseProblem, device: Device, tile: TileSizes) -> bool:
    """Store `tile` as the best one. Returns False, and stores nothing, if the kernels cannot be identified."""
    key = _key(variant, problem, device)
    if key is None:
        return False
    default_cache().put(_KIND, key, json.dumps(dict(tile)).encode())
    return True


def recall(variant: Variant, problem: BaseProblem, device: Device) -> TileSizes | None:
    """The best tile found for such a problem on this GPU.

    None if there is none or the variant no longer declares it.
    """
    if variant.tiles is None or not device.is_gpu:
        return None
    try:
        key = _key(variant, problem, device)
        found = None if key is None else default_cache().get(_KIND, key)
        tile = None if found is None else json.loads(found)
        return tile if tile in [dict(t) for t in declared_tiles(variant, problem)] else None
    except SandboxError:
        return None  # reported when the variant is run


def with_tuned_tiles(variants: Iterable[Variant], problem: BaseProblem, device: Device) -> list[Variant]:
    """Replace each variant by one with its best tile, if one was found."""
    return [
        variant if (tile := recall(variant, problem, device)) is None else with_tile(variant, tile)
        for variant in variants
    ]


def _key(variant: Variant, problem: BaseProblem, device: Device) -> Key | None:
    identities = [kernel_identity(launch.kernel) for launch in make_plan(variant, problem, device.arch).launches]
    tiles = [tile_text(tile) for tile in declared_tiles(variant, problem)]
    known = [identity for identity in identities if identity is not None]
    if len(known) < len(identities):
        return None
    return (device.name, device.arch, variant.name, repr(problem.size_class), repr(tiles), *known)
