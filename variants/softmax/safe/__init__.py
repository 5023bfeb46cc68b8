"""Safe softmax: kernels and registration. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

from typing import Any

from harness import Numerics, Registry, SoftmaxProblem
from variants._rows import register_sweeps

NUMERICS = Numerics(functions="accurate", sums="nearest")


def kernel_in_cupy(problem: SoftmaxProblem) -> Any:
    from variants._rows.rawkernel import row_kernel

    return row_kernel("softmax/safe", "safe_softmax", problem)


def kernel_in_numba(problem: SoftmaxProblem) -> Any:
    from variants.softmax.safe.numba_kernel import safe_kernel

    return safe_kernel(problem.dtype)


def register(registry: Registry) -> None:
    """Add `softmax-safe-cupy` and `softmax-safe-numba`."""
    idea = "the maximum, then the sum, then the quotients: three sweeps"
    languages = {"cupy": kernel_in_cupy, "numba": kernel_in_numba}
    register_sweeps(registry, "softmax-safe", idea, languages, sweeps=3, numerics=NUMERICS)
