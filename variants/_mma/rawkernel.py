"""How CUDA sources that begin with mma.cuh are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from variants._mma import MmaTile

COMMON = (("_mma", "mma.cuh"),)
COMMON_WITH_TILES = (*COMMON, ("_mma", "tiles.cuh"))

STRIDED = (("_mma", "strided_tiles.cuh"),)
"""Header of kernels that move tiles whose rows are no run in memory."""


def tile_sizes(head_dim: int, tile: MmaTile) -> dict[str, int]:
    """The compile-time parameters of tiles.cuh and the kernels that have tiles."""
    return {
        "D": head_dim,
        "BR": tile.Br,
        "BC": tile.Bc,
        "WARPS": tile.warps,
        "STAGES": tile.stages,
        "BLOCKS_PER_SM": tile.blocks_per_sm,
    }
