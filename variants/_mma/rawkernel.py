"""CUDA sources that begin with mma.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Any

from variants._mma import MmaTile


def mma_options(head_dim: int, tile: MmaTile, dtype: str) -> tuple[str, ...]:
    """The compile-time parameters of mma.cuh and of kernels with tiles."""
    sizes = {"D": head_dim, "BR": tile.Br, "BC": tile.Bc, "WARPS": tile.warps, "STAGES": tile.stages}
    sizes["BLOCKS_PER_SM"] = tile.blocks_per_sm
    return (*(f"-D{name}={size}" for name, size in sizes.items()), f"-DSTORED_AS_{dtype}")


@functools.cache
def raw_kernel(algorithm: str, name: str, options: tuple[str, ...]) -> Any:
    """The kernel `name` of variants/`algorithm`/kernel.cu."""
    import cupy

    return cupy.RawKernel(_source(algorithm), name, options=options)


@functools.cache
def _source(algorithm: str) -> str:
    # CuPy's cache on disk knows a kernel by its text: an #include would hide changes from it. #line lets compile
    # errors, profilers and the emulator name the file as the user sees it.
    files = (("_mma", "mma.cuh"), (algorithm, "kernel.cu"))
    return "".join(
        f'#line 1 "variants/{folder}/{file}"\n{resources.files(f"variants.{folder}").joinpath(file).read_text()}\n'
        for folder, file in files
    )
