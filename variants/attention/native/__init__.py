"""Attention by its definition: exp(s) over its sum, without subtracting a maximum.

O = sum_j exp(s_j) v_j / sum_j exp(s_j), s_j = tau q.k_j. Both sums are accumulated in one pass over the keys: Rabe and
Staats 2021, "Self-attention Does Not Need O(n^2) Memory", arXiv 2112.05682, section 2, with the native softmax of
Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 1. One warp owns one query. The result is right as long as exp
stays within float32, for scores between about -87 and 88, and wrong beyond, which the variant declares. `row-wise`
subtracts the running maximum and moves the same bytes.

Bytes, per query head, n_j being the rows that see key j:

    2 X_q + sum_j n_j (bytes of k_j + v_j)        = 2 X_q + N_q 2 X_k if nothing is masked

with Q only of rows that see a key.
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

    return warp_kernel("native", problem)


def numba_kernels(problem: Problem) -> Any:
    """The Numba kernel."""
    from variants.attention.native.numba_kernel import native_kernel

    return native_kernel(problem.head_dim, problem.dtype, in_numba(problem, TILE.Br, TILE.Bc))


def register(registry: Registry) -> None:
    """Add `native-cupy` and `native-numba`."""
    idea = "exp without subtracting the maximum, a row per warp: correct if nothing overflows"
    languages = {"cupy": cupy_kernels, "numba": numba_kernels}
    register_warps(registry, "native", idea, languages, NUMERICS, fails_in=FAILS_IN)
