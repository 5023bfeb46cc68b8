"""CUDA sources that begin with a common part, such as tiles.cuh -> `cupy.RawKernel`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import PagedProblem, Problem
from variants._features import FOLDER, Feature, declarations, stored
from variants._tiles.schedule import Sizes

Files = tuple[tuple[str, str], ...]
"""Folders, absolute or below variants/, and files there."""
_VARIANTS = Path(__file__).parent.parent


def tile_sizes(tile: Sizes) -> tuple[str, ...]:
    """The compile-time parameters of kernels that read masks alone."""
    return (f"-DBR={tile.Br}", f"-DBC={tile.Bc}")


SIZES = {"BLOCKS_PER_SM": 4, "STEPS_AT_ONCE": 2}
"""Blocks that share a multiprocessor at least: four leave each thread 128 registers, which the products fill; and steps
of S = Q K^T that are written out one after the other."""
UNROLLED = {**SIZES, "STEPS_AT_ONCE": 4}
"""Sizes of kernels that have registers left for more steps, which is faster."""
BELOW_TILES: Files = tuple((FOLDER, file) for file in ("limits.cuh", "scores.cuh", "tile_order.cuh"))
"""Files whose types tiles.cuh uses."""
SWEEP: Files = (("_tiles", "sweep.cuh"),)
"""Header of kernels that compute scores several times."""
STRIDED: Files = (("_tiles", "strided_tiles.cuh"),)
"""Header of kernels that move tiles whose rows are no run in memory."""
LANES: Files = (("_tiles", "lanes.cuh"),)
"""Header of kernels in which each warp takes rows."""


def tiles_kernel(
    folder: str,
    name: str,
    problem: Problem | PagedProblem,
    tile: Sizes,
    features: tuple[Feature, ...],
    sizes: Mapping[str, int] = SIZES,
    copies: bool = False,
    headers: Files = (),
    file: str = "kernel.cu",
) -> Any:
    """The kernel `name` of variants/`folder`/`file`, before which its features and tiles.cuh are put.

    `sizes`: further compile-time parameters; `copies`: copies.cuh is put before it, too; and so are `headers`.
    """
    widths = (f"-DD={problem.head_dim}", f"-DDV={problem.v_width}")
    options = (*widths, *tile_sizes(tile), *(f"-D{name}={size}" for name, size in sizes.items()))
    files, using = declarations(features)
    files = tuple(dict.fromkeys((*stored(problem.dtype), *BELOW_TILES, *files)))
    tiles = (("_tiles", "tiles.cuh"), *(("_tiles", "copies.cuh"),) * copies, *headers)
    return raw_kernel(folder, name, options, (*files, *tiles), using, file)


@functools.cache
def raw_kernel(
    folder: str,
    name: str,
    options: tuple[str, ...],
    common: Files,
    generated: str = "",
    file: str = "kernel.cu",
    parts: Files = (),
) -> Any:
    """The kernel `name` of variants/`folder`/`file`, before which `common`, `generated` and `parts` are put.

    `parts` may use the names that `generated` declares. A generated text of more than `using` lines begins with a
    `#line` that names a file: other names look different from each folder that one works in, so that the kernel would
    be compiled anew there.
    """
    import cupy

    return cupy.RawKernel(_source((folder, file), common, generated, parts), name, options=options)


@functools.cache
def _source(own: tuple[str, str], common: Files, generated: str, parts: Files) -> str:
    # CuPy's cache on disk knows a kernel by its text: an #include would hide changes from it. #line lets compile
    # errors, profilers and the emulator name the file as the user sees it.
    def text(folder: str, file: str) -> str:
        shown = Path(folder) if Path(folder).is_absolute() else Path("variants", folder)
        return f'#line 1 "{shown / file}"\n{(_VARIANTS / folder / file).read_text()}\n'

    return "".join(text(*file) for file in common) + generated + "".join(text(*file) for file in (*parts, own))
