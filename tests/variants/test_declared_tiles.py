"""Every tile that a variant declares compiles, to PTX and, where it is installed, by ptxas.

With whatever compilers are installed: run it in an environment of CUDA 12 and in one of CUDA 13.
"""

from __future__ import annotations

import math

import pytest

from harness.compilers import DevicePointer, compile_kernel
from harness.compilers.ptxas import resources
from harness.execution.planning.tiles import with_tile
from harness.execution.planning.variant_calls import make_plan
from harness.model.discovery import discover
from harness.model.tile_sizes import TileSizes, tile_text
from harness.model.variant import Variant
from harness.operations.attention.problem import Problem

pytestmark = [pytest.mark.compiles, pytest.mark.exhaustive]

VARIANTS = {v.name: v for v in discover().registry.select(None, "attention") if v.tiles is not None}
ALL_TILES_AT = (96, 128)
"""The first of these that a variant supports."""
HEAD_DIMS = (33, 40, 64, 80, 128, 256)
"""Each number of elements that is copied at once, and rows that are no whole fragments; with the default tile."""
SHORT_ROWS = (18, 20)
"""Tiles of these are the largest that are declared, and a lane copies 4 or 8 bytes at once."""


def plain_problem(head_dim: int) -> Problem:
    return Problem(heads=1, q_len=64, kv_len=64, head_dim=head_dim, dtype="float16")


def elements(tile: TileSizes) -> int:
    """Of all tiles on chip at once, up to a factor."""
    return math.prod(size for name, size in tile.items() if name != "warps")


def compile_all(variant: Variant, problem: Problem) -> None:
    arch = variant.arch or "sm_90"
    plan = make_plan(variant, problem, arch)
    pointers = {b.name: DevicePointer(256, b.shape, b.dtype) for b in plan.all_buffers(problem).values()}
    for launch in plan.launches:
        args = tuple(pointers[a] if isinstance(a, str) else a for a in launch.args)
        kernel = compile_kernel(launch.kernel, args, arch)
        # Raises where ptxas does not take it; None where there is no ptxas, or one that is older than the compiler.
        used = resources(kernel.ptx, kernel.arch, kernel.entry, kernel.max_registers)
        assert used is None or used.registers > 0


def problem_of_all_tiles(variant: Variant) -> Problem:
    return next(problem for problem in map(plain_problem, ALL_TILES_AT) if variant.supports(problem) is None)


WARPGROUPS = ("fa3-cupy", "fa3-numba", "fa3-fp8-cupy")
"""Their own tests compile every tile, and look at the registers, too."""
TILES = [
    (name, tile)
    for name, v in VARIANTS.items()
    if v.tiles and name not in WARPGROUPS
    for tile in v.tiles(problem_of_all_tiles(v))
]


@pytest.mark.parametrize(("name", "tile"), TILES, ids=[f"{name} {tile_text(tile)}" for name, tile in TILES])
def test_every_declared_tile_compiles(name: str, tile: TileSizes) -> None:
    compile_all(with_tile(VARIANTS[name], tile), problem_of_all_tiles(VARIANTS[name]))


KINDS = [(name, d) for name, v in VARIANTS.items() for d in HEAD_DIMS if v.supports(plain_problem(d)) is None]


@pytest.mark.parametrize(("name", "head_dim"), KINDS)
def test_the_default_tile_compiles_for_every_kind_of_row(name: str, head_dim: int) -> None:
    compile_all(VARIANTS[name], plain_problem(head_dim))


LARGEST = [(name, d) for name, v in VARIANTS.items() for d in SHORT_ROWS if v.supports(plain_problem(d)) is None]


@pytest.mark.parametrize(("name", "head_dim"), LARGEST)
def test_the_largest_tile_compiles_for_short_rows(name: str, head_dim: int) -> None:
    variant = VARIANTS[name]
    assert variant.tiles is not None
    compile_all(with_tile(variant, max(variant.tiles(plain_problem(head_dim)), key=elements)), plain_problem(head_dim))
