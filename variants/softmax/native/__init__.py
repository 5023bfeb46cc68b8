"""Softmax by its definition, without a maximum: kernels and registration. ../README.md explains the algorithm.

The result is right as long as exp stays within float32, for x between about -87 and 88, and wrong beyond, which the
variant declares.
"""

from __future__ import annotations

from typing import Any

from harness import Numerics, Registry, SoftmaxProblem
from variants._rows import register_sweeps

NUMERICS = Numerics(sums="nearest")
"""Functions are left at `fast`: the others promise exp(x - m), with a weight of exactly 1 for the maximum."""
FAILS_IN = ("hot", "negative", "far-negative", "offset", "non-finite")
"""exp overflows, or everything underflows; and with +inf in a row, the other columns are 0 instead of NaN."""


def kernel_in_cupy(problem: SoftmaxProblem) -> Any:
    from variants._rows.rawkernel import row_kernel

    return row_kernel("softmax/native", "native_softmax", problem)


def kernel_in_numba(problem: SoftmaxProblem) -> Any:
    from variants.softmax.native.numba_kernel import native_kernel

    return native_kernel(problem.dtype)


def register(registry: Registry) -> None:
    """Add `softmax-native-cupy` and `softmax-native-numba`."""
    idea = "exp without subtracting the maximum: two sweeps, correct if nothing overflows"
    languages = {"cupy": kernel_in_cupy, "numba": kernel_in_numba}
    register_sweeps(registry, "softmax-native", idea, languages, sweeps=2, numerics=NUMERICS, fails_in=FAILS_IN)
