"""How CUDA sources that use tcgen05 are compiled: see variants/_tiles/rawkernel.py."""

from __future__ import annotations

from typing import Any

from variants._blackwell import ARCH
from variants._features import Feature, Files, declarations, stored
from variants._tiles.rawkernel import raw_kernel

FOLDER = "_blackwell"
HOPPER: Files = tuple(("_hopper", f"{part}.cuh") for part in ("hopper", "slots", "registers"))
INSTRUCTIONS: Files = (
    ("_features", "scores.cuh"),
    ("_mma", "mma.cuh"),
    *HOPPER,
    *((FOLDER, f"{part}.cuh") for part in ("tensor_memory", "products", "events", "launch_control", "exponentials")),
)


def blackwell_kernel(
    folder: str,
    name: str,
    head_dim: int,
    sizes: dict[str, int],
    dtype: str,
    features: tuple[Feature, ...],
    parts: Files,
) -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu, behind the instructions, the features and `parts`."""
    parameters = {"HEAD_DIM": head_dim, "D": head_dim, **sizes}
    options = (*(f"-D{size}={number}" for size, number in parameters.items()), f"-arch={ARCH}")
    files, using = declarations(features)
    common = tuple(dict.fromkeys((*stored(dtype), *INSTRUCTIONS, *files)))
    return raw_kernel(folder, name, options, common, using, parts=parts)
