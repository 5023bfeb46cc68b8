"""Online softmax: kernels and registration. ../README.md explains the algorithm and derives its bytes."""

from __future__ import annotations

from typing import Any

from harness import Numerics, Registry, SoftmaxProblem
from variants._rows import register_sweeps

NUMERICS = Numerics(functions="accurate", sums="nearest")


def kernel_in_cupy(problem: SoftmaxProblem) -> Any:
    from variants._rows.rawkernel import row_kernel

    return row_kernel("softmax/online", "online_softmax", problem)


def kernel_in_numba(problem: SoftmaxProblem) -> Any:
    from variants.softmax.online.numba_kernel import online_kernel

    return online_kernel(problem.dtype)


def register(registry: Registry) -> None:
    """Add `softmax-online-cupy` and `softmax-online-numba`."""
    idea = "maximum and sum in one sweep, corrected as the maximum rises: two sweeps"
    languages = {"cupy": kernel_in_cupy, "numba": kernel_in_numba}
    register_sweeps(registry, "softmax-online", idea, languages, sweeps=2, numerics=NUMERICS)
