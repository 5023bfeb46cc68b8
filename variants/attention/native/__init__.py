"""Attention by its definition, without a maximum: kernels and registration.

README.md explains the algorithm and derives its bytes. Under a mask, Q is only read of rows that see a key.
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Problem, Registry
from variants._features import in_numba
from variants._warps import TILE, register_warps

NUMERICS = Numerics(scores="float32", weights="float32", sums="nearest", one_score=True, divides_last=True)
"""Functions are left at `fast`: the others promise exp(s - m), with a weight of exactly 1 for the maximum."""
BEYOND_EXP = ("hot", "overflow", "negative", "far-negative")
"""exp overflows, or everything underflows."""
FAILS_IN = {"cupy": (*BEYOND_EXP, "subnormal"), "numba": BEYOND_EXP}
"""CuPy compiles with -ftz=true: where all scores of a row are below 0, exp(s) v of the smallest values becomes 0."""


def cupy_kernels(problem: Problem) -> Any:
    """The CUDA kernel."""
    from variants._warps.rawkernel import warp_kernel

    return warp_kernel("attention/native", "native", problem)


def numba_kernels(problem: Problem) -> Any:
    """The Numba kernel."""
    from variants.attention.native.numba_kernel import native_kernel

    return native_kernel(problem.head_dim, problem.dtype, in_numba(problem, TILE.Br, TILE.Bc))


def register(registry: Registry) -> None:
    """Add `native-cupy` and `native-numba`."""
    idea = "exp without subtracting the maximum, a row per warp: correct if nothing overflows"
    languages = {"cupy": cupy_kernels, "numba": numba_kernels}
    register_warps(registry, "native", idea, languages, NUMERICS, fails_in=FAILS_IN)
