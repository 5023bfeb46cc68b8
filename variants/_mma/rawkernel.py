"""How CUDA sources that begin with mma.cuh are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from variants._mma import MmaTile
from variants._tiles.rawkernel import SPANS_OPTION

COMMON = (("_mma", "mma.cuh"),)
COMMON_WITH_SPLITS = (*COMMON, ("_mma", "splits.cuh"), ("_mma", "combine.cuh"))
COMMON_WITH_TILES = (*COMMON, ("_mma", "tiles.cuh"))
KEPT_REGISTERS = 176
"""What S, O and the kept part of Q may take of a thread's 255 registers."""
BESIDE_SCORING = 168
"""`KEPT_REGISTERS` if scores are transformed before the mask, which takes a few registers."""
BESIDE_VISITS = 144
"""`KEPT_REGISTERS` if tiles are listed."""
BESIDE_WINDOW = 152
"""`KEPT_REGISTERS` if the first and the last tile of a window are visited at once."""
BESIDE_DROPOUT = 160
"""`KEPT_REGISTERS` with dropout, whose random numbers are drawn several at once."""


def mma_options(
    head_dim: int, tile: MmaTile, dtype: str, spans: bool = False, kept_registers: int = KEPT_REGISTERS
) -> tuple[str, ...]:
    """The compile-time parameters of mma.cuh, tiles.cuh and the kernels that have tiles; `spans`: as `tile_options`."""
    sizes = {
        "D": head_dim,
        "BR": tile.Br,
        "BC": tile.Bc,
        "WARPS": tile.warps,
        "STAGES": tile.stages,
        "BLOCKS_PER_SM": tile.blocks_per_sm,
        "KEPT_REGISTERS": kept_registers,
    }
    options = (*(f"-D{name}={size}" for name, size in sizes.items()), f"-DSTORED_AS_{dtype}")
    return (*options, SPANS_OPTION) if spans else options
