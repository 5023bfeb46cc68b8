"""CUDA kernels are compiled with sizes, and hardly any other macros: features are types."""

from __future__ import annotations

import pytest

from harness.compilers.toolchains import toolchain_of
from harness.model.discovery import discover
from harness.model.operation import operation_named
from harness.model.variant import Variant

TILE_SIZES = {"D", "DV", "HEAD_DIM", "BR", "BC"}
MOST_MACROS = 6
"""Besides the sizes of tiles."""
TILED = ("fa2-cupy", "fa2-mma-cupy", "fa3-cupy")
"""Kernels that certainly have some."""
VARIANTS = [v for v in discover().registry if v.backend == "cupy"]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_kernel_has_few_macros_besides_the_sizes_of_its_tiles(variant: Variant):
    operation = operation_named(variant.operation)
    problem = next(p for p in (operation.problem(), operation.problem(dtype="bfloat16")) if variant.supports(p) is None)
    for launch in variant.plan(problem).launches:
        options = toolchain_of(launch.kernel).options(launch.kernel)
        macros = {option[2:].partition("=")[0] for option in options if option.startswith("-D")}
        assert macros & TILE_SIZES or variant.name not in TILED
        assert len(macros - TILE_SIZES) <= MOST_MACROS, launch.kernel_name
