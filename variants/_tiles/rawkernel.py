"""CUDA sources that begin with a common part, such as tiles.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from variants._tiles import Tile

Files = tuple[tuple[str, str], ...]
_VARIANTS = Path(__file__).parent.parent
COMMON: Files = (("_tiles", "tiles.cuh"),)
"""Folders below variants/ and files there."""


def tile_options(head_dim: int, tile: Tile, dtype: str) -> tuple[str, ...]:
    """The compile-time parameters of tiles.cuh."""
    return (f"-DD={head_dim}", f"-DBR={tile.Br}", f"-DBC={tile.Bc}", f"-DSTORED_AS_{dtype}")


@functools.cache
def raw_kernel(folder: str, name: str, options: tuple[str, ...], common: Files = COMMON, generated: str = "") -> Any:
    """The kernel `name` of variants/`folder`/kernel.cu, before which the texts of `common` and `generated` are put."""
    import cupy

    return cupy.RawKernel(_source(folder, common, generated), name, options=options)


@functools.cache
def _source(algorithm_folder: str, common: Files, generated: str) -> str:
    # CuPy's cache on disk knows a kernel by its text: an #include would hide changes from it. #line lets compile
    # errors, profilers and the emulator name the file as the user sees it.
    def text(folder: str, file: str) -> str:
        return f'#line 1 "variants/{folder}/{file}"\n{(_VARIANTS / folder / file).read_text()}\n'

    made = f'#line 1 "generated"\n{generated}\n' if generated else ""
    return "".join(text(*file) for file in common) + made + text(algorithm_folder, "kernel.cu")
