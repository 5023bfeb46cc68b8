"""The tile sizes that `tune` found fastest, kept per GPU and taken up by `compare` and `bench` there.

They lie in the disk cache, under everything that they depend on: the GPU, the variant with its kernels and the tiles it
declares, and the problem up to its size, of which only the order of magnitude counts. Whoever changes a kernel has to
tune again; nothing stale is ever taken up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from harness.compilers import kernel_identity
from harness.execution.planning import declared_tiles, make_plan
from harness.execution.protocol import Device
from harness.execution.tiles import with_tile
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.support.cache import Key, default_cache
from harness.support.errors import SandboxError

_KIND = "tuned"


def remember(variant: Variant, problem: BaseProblem, device: Device, tile: TileSizes) -> bool:
    """Keep `tile` as the best one. False where the kernels cannot be told from changed ones, so nothing is kept."""
    key = _key(variant, problem, device)
    if key is None:
        return False
    default_cache().put(_KIND, key, json.dumps(dict(tile)).encode())
    return True


def recall(variant: Variant, problem: BaseProblem, device: Device) -> TileSizes | None:
    """The tile that was found best for such a problem on such a GPU, if the variant still declares it."""
    if variant.tiles is None or device.kind != "gpu":
        return None
    try:
        key = _key(variant, problem, device)
        found = None if key is None else default_cache().get(_KIND, key)
        tile = None if found is None else json.loads(found)
        return tile if tile in [dict(t) for t in declared_tiles(variant, problem)] else None
    except SandboxError:
        return None  # a variant that cannot plan says so when it is run


def with_tuned_tiles(variants: Iterable[Variant], problem: BaseProblem, device: Device) -> list[Variant]:
    """Each variant with the tile that was found best for it, where there is one."""
    return [
        variant if (tile := recall(variant, problem, device)) is None else with_tile(variant, tile)
        for variant in variants
    ]


def _key(variant: Variant, problem: BaseProblem, device: Device) -> Key | None:
    identities = [kernel_identity(launch.kernel) for launch in make_plan(variant, problem).launches]
    tiles = [tile_text(tile) for tile in declared_tiles(variant, problem)]
    known = [identity for identity in identities if identity is not None]
    if len(known) < len(identities):
        return None
    return (device.name, device.arch, variant.name, repr(problem.size_class), repr(tiles), *known)
