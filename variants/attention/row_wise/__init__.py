"""Attention in one pass per row, without tiles: kernels and registration.

README.md explains the algorithm and derives its bytes. Under a mask, Q is only read of rows that see a key.
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Problem, Registry
from variants._features import in_numba
from variants._warps import TILE, register_warps

NUMERICS = Numerics(
    scores="float32", weights="float32", functions="__expf", sums="nearest", one_score=True, divides_last=True
)
"""Nothing is rounded to 16 bits before O, which is divided once."""


def cupy_kernels(problem: Problem) -> Any:
    """The CUDA kernel."""
    from variants._warps.rawkernel import warp_kernel

    return warp_kernel("attention/row_wise", "row_wise", problem)


def numba_kernels(problem: Problem) -> Any:
    """The Numba kernel."""
    from variants.attention.row_wise.numba_kernel import row_wise_kernel

    return row_wise_kernel(problem.head_dim, problem.dtype, in_numba(problem, TILE.Br, TILE.Bc))


def register(registry: Registry) -> None:
    """Add `row-wise-cupy` and `row-wise-numba`."""
    idea = "FlashAttention without tiles: one pass per row, which reads all of K and V for itself"
    languages = {"cupy": cupy_kernels, "numba": numba_kernels}
    register_warps(registry, "row-wise", idea, languages, NUMERICS, stores_lse=True)
