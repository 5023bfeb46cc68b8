"""How CUDA sources that begin with mma.cuh are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from variants._mma import MmaTile

COMMON = (("_mma", "mma.cuh"),)
COMMON_WITH_TILES = (*COMMON, ("_mma", "tiles.cuh"))
KEPT_REGISTERS = 176
"""What S, O and the kept part of Q may take of a thread's 255 registers."""


def mma_options(head_dim: int, tile: MmaTile, dtype: str) -> tuple[str, ...]:
    """The compile-time parameters of mma.cuh, tiles.cuh and the kernels that have tiles."""
    sizes = {
        "D": head_dim,
        "BR": tile.Br,
        "BC": tile.Bc,
        "WARPS": tile.warps,
        "STAGES": tile.stages,
        "BLOCKS_PER_SM": tile.blocks_per_sm,
        "KEPT_REGISTERS": KEPT_REGISTERS,
    }
    return (*(f"-D{name}={size}" for name, size in sizes.items()), f"-DSTORED_AS_{dtype}")
