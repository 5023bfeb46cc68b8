"""CUDA sources that begin with warps.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

from typing import Any

from harness import Problem
from variants._tiles.rawkernel import COMMON, raw_kernel, tile_options
from variants._warps import TILE


def warp_kernel(name: str, problem: Problem) -> Any:
    """The kernel `name` of the folder of that name in variants/attention/."""
    options = tile_options(problem, TILE)
    return raw_kernel(f"attention/{name}", name, options, (*COMMON, ("_warps", "warps.cuh")))
