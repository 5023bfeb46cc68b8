"""How CUDA sources that begin with hopper.cuh are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from typing import Any

from variants._features import Feature, Files, declarations, stored
from variants._hopper import WarpgroupTile, padded
from variants._tiles.rawkernel import raw_kernel

FOLDER = "_hopper"
MMA: Files = (("_features", "scores.cuh"), ("_mma", "mma.cuh"))
INSTRUCTIONS: Files = (*MMA, (FOLDER, "hopper.cuh"), (FOLDER, "softmax.cuh"))
PIPELINE: Files = tuple(
    (FOLDER, f"{part}.cuh")
    for part in ("registers", "key_tiles", "row_tiles", "slots", "inspection", "pipeline", "output")
)
"""Files that use the types of features."""
NUMBERS: Files = ((FOLDER, "e4m3.cuh"),)
E4M3: Files = (*NUMBERS, (FOLDER, "e4m3_tiles.cuh"))
FOR_HOPPER = "-arch=sm_90a"


def hopper_kernel(
    folder: str,
    name: str,
    head_dim: int,
    tile: WarpgroupTile,
    dtype: str,
    features: tuple[Feature, ...],
    generated: str,
    parts: Files = (),
) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu, behind the pipeline, `parts` and not_finite.cuh in its folder.

    `generated`: text behind the types of the features, such as the products of the tile's sizes.
    """
    sizes = {"HEAD_DIM": head_dim, "D": padded(head_dim), "BR": tile.Br, "BC": tile.Bc, "STAGES": tile.stages}
    options = (*(f"-D{size}={number}" for size, number in sizes.items()), FOR_HOPPER)
    files, using = declarations(features)
    parts = (*PIPELINE, *parts, (folder, "not_finite.cuh"))
    common = tuple(dict.fromkeys((*stored(dtype), *INSTRUCTIONS, *files)))
    return raw_kernel(folder, name, options, common, using + generated, parts=parts)


def rounding_kernel(folder: str, name: str, head_dim: int, dtype: str) -> Any:
    """The kernel `name` of variants/`folder`/factors.cu, which makes e4m3 of `dtype`."""
    options = (f"-DD={padded(head_dim)}", FOR_HOPPER)
    return raw_kernel(folder, name, options, (*stored(dtype), *MMA, *NUMBERS), file="factors.cu")
