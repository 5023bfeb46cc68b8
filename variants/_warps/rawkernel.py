"""CUDA sources that begin with warps.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

from typing import Any

from harness import Problem
from variants._tiles.rawkernel import LANES, tiles_kernel
from variants._warps import TILE, features_of


def warp_kernel(name: str, problem: Problem) -> Any:
    """The kernel `name` of the folder of that name in variants/attention/."""
    headers = (*LANES, ("_warps", "warps.cuh"))
    return tiles_kernel(f"attention/{name}", name, problem, TILE, features_of(problem), headers=headers)
