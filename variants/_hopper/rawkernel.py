"""How CUDA sources that begin with hopper.cuh are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from typing import Any

from variants._hopper import WarpgroupTile, padded
from variants._hopper.products import products
from variants._tiles.rawkernel import raw_kernel

COMMON = (("_mma", "mma.cuh"), ("_hopper", "hopper.cuh"), ("_hopper", "softmax.cuh"))


def hopper_kernel(folder: str, name: str, head_dim: int, tile: WarpgroupTile, dtype: str, **more: int) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu; `more` are its own compile-time parameters."""
    D = padded(head_dim)
    sizes = {"D": D, "BC": tile.Bc, "CONSUMERS": tile.consumers, "STAGES": tile.stages, "TURNS": tile.turns, **more}
    options = (*(f"-D{name}={int(size)}" for name, size in sizes.items()), f"-DSTORED_AS_{dtype}", "-arch=sm_90a")
    return raw_kernel(folder, name, options, COMMON, products(tile.Bc, D))
