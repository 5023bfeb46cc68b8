"""CUDA sources that begin with warps.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

from typing import Any

from harness import Problem
from variants._tiles.rawkernel import LANES, tiles_kernel
from variants._warps import TILE, features_of


def warp_kernel(folder: str, name: str, problem: Problem) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu."""
    headers = (*LANES, ("_warps", "warps.cuh"))
    return tiles_kernel(folder, name, problem, TILE, features_of(problem), headers=headers)
