"""Makes a contender of every tile that a variant declares, to find the best one.

On a GPU they are timed as `bench` times variants, in turns and with checks. On the emulator they are counted as
`compare` counts them; the fewest bytes win, which need not be the shortest time.

The search is exhaustive: a declared space has tens of tiles, each timed in well under a second. Kernel Tuner, which is
used for larger spaces, takes the source of one CUDA kernel with parameters as macros. Here a plan has several launches,
of CuPy's or Numba's kernels, whose grids and shared memory depend on the tile, and the answer of all of them together
has to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import declared_tiles
from harness.model.problem import BaseProblem
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.support.errors import UsageError

Contenders = Mapping[str, tuple[TileSizes, Variant]]
"""Tiles by name, each with a variant that has only this tile, the default first."""


def tile_contenders(variant: Variant, problem: BaseProblem) -> Contenders:
    """Tiles by name, each with a variant that has only this tile, the default first.

    Raises `UsageError` without tiles.
    """
    refusal = variant.supports(problem)
    if refusal is not None:
        raise UsageError(f"{variant.name} does not support this problem: {refusal}")
    tiles = declared_tiles(variant, problem)
    if len(tiles) < 2:
        raise UsageError(f"{variant.name} declares no tile sizes to choose from (Variant.tiles)")
    named = {"-".join(f"{name}{size}" for name, size in tile.items()): tile for tile in tiles}
    return {name: (tile, replace(with_tile(variant, tile), name=name)) for name, tile in named.items()}


def best_tile(ranks: Mapping[str, int | None], contenders: Contenders) -> str | None:
    """The name of the best contender. `ranks` is sorted from best to worst. The default wins a tie."""
    default = next(iter(contenders))
    if ranks.get(default) == 1:
        return default
    return next((name for name, rank in ranks.items() if rank == 1), None)


def fewest_bytes_verdict(variant: str, ranks: Mapping[str, int | None], contenders: Contenders) -> str:
    """A summary of tiles that were ranked by bytes, of which several may be equal."""
    first = [tile_text(contenders[name][0]) for name, rank in ranks.items() if rank == 1]
    if not first:
        return f"No tile of {variant} gives a correct result here."
    equal = "" if len(first) == 1 else f" The run times of these {len(first)} tiles may differ."
    return f"{variant} moves the fewest bytes here with --tile {' or '.join(first)}.{equal} {_default(contenders)}"


def shortest_time_verdict(variant: str, best: str | None, contenders: Contenders, stored_for: str | None) -> str:
    """A summary of tiles that were timed. `stored_for` is the GPU for which the best one was stored."""
    if best is None:
        return f"No tile of {variant} gives a correct result here."
    stored = "" if stored_for is None else f" Stored for {stored_for}: compare and bench use it there."
    return f"{variant} is fastest here with --tile {tile_text(contenders[best][0])}. {_default(contenders)}{stored}"


def _default(contenders: Contenders) -> str:
    return f"The default is {tile_text(next(iter(contenders.values()))[0])}."
