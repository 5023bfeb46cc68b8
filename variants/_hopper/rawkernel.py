"""How CUDA sources that begin with hopper.cuh are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import Problem
from variants._hopper import WarpgroupTile, padded
from variants._hopper.products import products, products_of_e4m3
from variants._tiles.rawkernel import raw_kernel, span_options
from variants._tiles.visits import cuda_parts

MMA = ("_mma", "mma.cuh")
COMMON = (MMA, ("_hopper", "hopper.cuh"), ("_hopper", "softmax.cuh"))
E4M3 = ("_hopper", "e4m3.cuh")
FOR_HOPPER = "-arch=sm_90a"


def hopper_kernel(folder: str, name: str, problem: Problem, tile: WarpgroupTile, **more: int) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu, behind pipeline.cuh there; `more` are its own parameters.

    It reads what rows see from arrays, or visits listed tiles, where the problem's mask wants it.
    """
    text = products(tile.Bc, padded(problem.head_dim))
    rule_texts, rule_options = cuda_parts(problem, tile)
    of_mask = (*span_options(problem), *rule_options)
    if rule_texts:
        of_mask += (f"-DBR={tile.Br}",)
    options = (*_options(problem.head_dim, tile, problem.dtype, more), *of_mask)
    return raw_kernel(folder, name, options, (*rule_texts, *COMMON, (folder, "pipeline.cuh")), text)


def e4m3_kernel(folder: str, name: str, head_dim: int, tile: WarpgroupTile, dtype: str, **more: int) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu with factors in e4m3; `dtype` is that of O."""
    common = (*COMMON, E4M3, ("_hopper", "e4m3_tiles.cuh"), (folder, "pipeline.cuh"))
    text = products_of_e4m3(tile.Bc, padded(head_dim))
    return raw_kernel(folder, name, _options(head_dim, tile, dtype, more), common, text)


def rounding_kernel(folder: str, name: str, head_dim: int, dtype: str) -> Any:
    """The kernel `name` of variants/`folder`/factors.cu, which makes e4m3 of `dtype`."""
    options = (f"-DD={padded(head_dim)}", f"-DSTORED_AS_{dtype}", FOR_HOPPER)
    return raw_kernel(folder, name, options, (MMA, E4M3), file="factors.cu")


def _options(head_dim: int, tile: WarpgroupTile, dtype: str, more: Mapping[str, int]) -> tuple[str, ...]:
    sizes = {
        "D": padded(head_dim), "BC": tile.Bc, "CONSUMERS": tile.consumers, "STAGES": tile.stages, "TURNS": tile.turns,
    }  # fmt: skip
    said = (f"-D{name}={int(size)}" for name, size in {**sizes, **more}.items())
    return (*said, f"-DSTORED_AS_{dtype}", FOR_HOPPER)
