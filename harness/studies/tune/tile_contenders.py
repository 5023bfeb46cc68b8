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
from harness.model.tile_sizes import TileSizes
from harness.model.variant import Variant
from harness.support.errors import UsageError


def tile_contenders(variant: Variant, problem: BaseProblem) -> dict[str, tuple[TileSizes, Variant]]:
    """Tiles by name, each with a variant that has only this tile, the default first.

    Raises `UsageError` without tiles.
    """
    refusal = variant.supports(problem)
    if refusal is not None:
        raise UsageError(f"{variant.name} does not take this problem: {refusal}")
    tiles = declared_tiles(variant, problem)
    if len(tiles) < 2:
        raise UsageError(f"{variant.name} declares no tile sizes to choose from (Variant.tiles)")
    named = {"-".join(f"{name}{size}" for name, size in tile.items()): tile for tile in tiles}
    return {name: (tile, replace(with_tile(variant, tile), name=name)) for name, tile in named.items()}


def best_tile(ranks: Mapping[str, int | None], contenders: Mapping[str, tuple[TileSizes, Variant]]) -> str | None:
    """The name of the best contender. `ranks` is sorted from best to worst. The default wins a tie."""
    default = next(iter(contenders))
    if ranks.get(default) == 1:
        return default
    return next((name for name, rank in ranks.items() if rank == 1), None)


def tuning_verdict(variant: str, best: str | None, default: str, kept_for: str | None) -> str:
    """A one-line summary of the result. `kept_for` is the GPU for which it was stored."""
    if best is None:
        return f"No tile of {variant} came out right here."
    what = f"Best tile of {variant} here: {best}" + (", its default" if best == default else f" (default: {default})")
    if kept_for is None:
        return f"{what}. Choose it with --tile."
    return f"{what}; kept for {kept_for}, where compare and bench take it up."
