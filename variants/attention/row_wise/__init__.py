"""Attention in one pass per row, without tiles.

Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory", arXiv 2112.05682, sections 2 and 3. One warp owns
one query. It goes over the keys with the running maximum m, the running denominator l and an o that is not yet divided
by l in registers (Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3, with o beside l). No N x N matrix is
stored, as in FlashAttention; but each row reads all of K and V from memory. Tiles avoid that: `fa2` reads them once for
a block of rows, 64 at head_dim 64. The log-sum-exp L = m + log(l) is stored for a backward pass.

Bytes, per query head, n_j being the rows that see key j:

    2 X_q + 32 N_q + sum_j n_j (bytes of k_j + v_j)        = 2 X_q + 32 N_q + N_q 2 X_k if nothing is masked

with Q only of rows that see a key. Each warp stores one log-sum-exp, which takes a sector.
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

    return warp_kernel("row_wise", problem)


def numba_kernels(problem: Problem) -> Any:
    """The Numba kernel."""
    from variants.attention.row_wise.numba_kernel import row_wise_kernel

    return row_wise_kernel(problem.head_dim, problem.dtype, in_numba(problem, TILE.Br, TILE.Bc))


def register(registry: Registry) -> None:
    """Add `row-wise-cupy` and `row-wise-numba`."""
    idea = "FlashAttention without tiles: one pass per row, which reads all of K and V for itself"
    languages = {"cupy": cupy_kernels, "numba": numba_kernels}
    register_warps(registry, "row-wise", idea, languages, NUMERICS, stores_lse=True)
